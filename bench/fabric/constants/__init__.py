"""Wrong constants: paths that admission has learned well cost something else from one moment on."""
