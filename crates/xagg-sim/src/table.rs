//! What scenarios cost, as a table.
