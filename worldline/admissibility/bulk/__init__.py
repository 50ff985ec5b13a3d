"""Bulk moves (drain, defragmentation): planned in rounds, and kept out of interactive moves' way.

Paper, section 6.5: as rounds of node-disjoint matchings, transfers that collapse when they run
freely complete within 9 % of rounds x T_solo. A node that sends and receives at once starves one
of the two directions, so a node takes part in one move at a time, whichever its direction: the
rounds are a proper edge colouring of the undirected demand. `plan_bulk` plans, `decide_starts`
says what may start now.
"""
