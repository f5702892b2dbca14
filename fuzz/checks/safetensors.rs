//! The safetensors reader: any bytes give tensors whose sizes are right, or words about what is wrong; never a panic.

/// Panics if that does not hold for `bytes`.
pub fn check(bytes: &[u8]) {
    match flow_models::weights::parse(bytes) {
        Ok(parsed) => {
            for tensor in &parsed.tensors {
                let count: usize = tensor.shape.iter().product();
                if let Some(values) = tensor.to_f32() {
                    assert_eq!(values.len(), count, "one value per element of `{}`", tensor.name);
                }
            }
            assert!(
                parsed.tensors.is_sorted_by(|a, b| a.name < b.name),
                "sorted, and no name twice"
            );
        }
        Err(problem) => assert!(!problem.is_empty(), "a refusal says why"),
    }
}
