//! What touches Burn: devices, custom operations, counter-based random numbers, weights, the execution context and the model trait.
