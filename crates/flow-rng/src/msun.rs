//! Constants of `libm` 0.2.16 (`log.rs`, `rem_pio2.rs`, `k_sin.rs`, `k_cos.rs`, after FreeBSD's msun), for who computes its logarithm,
//! sine and cosine by its operations: here on vectors, in `flow-kernels-cube` on a GPU.

/// pi/2: its first 33 bits, the next 33, and the next.
pub const PIO2: [f64; 3] = [
    f64::from_bits(0x3FF9_21FB_5440_0000),
    f64::from_bits(0x3DD0_B461_1A60_0000),
    f64::from_bits(0x3BA3_198A_2E00_0000),
];
/// What is left of pi/2 after each of [`PIO2`] and those before it, rounded.
pub const PIO2_REST: [f64; 3] = [
    f64::from_bits(0x3DD0_B461_1A62_6331),
    f64::from_bits(0x3BA3_198A_2E03_7073),
    f64::from_bits(0x397B_839A_2520_49C1),
];
/// ln 2, to its upper bits and the rest.
pub const LN2: [f64; 2] = [
    f64::from_bits(0x3FE6_2E42_FEE0_0000),
    f64::from_bits(0x3DEA_39EF_3579_3C76),
];
/// Coefficients of the logarithm, by rising powers.
pub const LOG: [f64; 7] = [
    f64::from_bits(0x3FE5_5555_5555_5593),
    f64::from_bits(0x3FD9_9999_9997_FA04),
    f64::from_bits(0x3FD2_4924_9422_9359),
    f64::from_bits(0x3FCC_71C5_1D8E_78AF),
    f64::from_bits(0x3FC7_4664_96CB_03DE),
    f64::from_bits(0x3FC3_9A09_D078_C69F),
    f64::from_bits(0x3FC2_F112_DF3E_5244),
];
/// Of the sine.
pub const SIN: [f64; 6] = [
    f64::from_bits(0xBFC5_5555_5555_5549),
    f64::from_bits(0x3F81_1111_1110_F8A6),
    f64::from_bits(0xBF2A_01A0_19C1_61D5),
    f64::from_bits(0x3EC7_1DE3_57B1_FE7D),
    f64::from_bits(0xBE5A_E5E6_8A2B_9CEB),
    f64::from_bits(0x3DE5_D93A_5ACF_D57C),
];
/// Of the cosine.
pub const COS: [f64; 6] = [
    f64::from_bits(0x3FA5_5555_5555_554C),
    f64::from_bits(0xBF56_C16C_16C1_5177),
    f64::from_bits(0x3EFA_01A0_19CB_1590),
    f64::from_bits(0xBE92_7E4F_809C_52AD),
    f64::from_bits(0x3E21_EE9E_BDB4_B1C4),
    f64::from_bits(0xBDA8_FAE9_BE88_38D4),
];
