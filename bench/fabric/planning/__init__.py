"""Planning: what somebody who knew everything beforehand could have done, and could not."""
