//! What may run together: paradigms, slots, geometry.
