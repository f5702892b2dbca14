//! Whether the device's attention kernels serve the model, asked before anything is computed.

use crate::error::TrainError;
use flow_accel::Arrangement;
use flow_config::{Config, Diagnostic};
use flow_core::ops::attention::Place;
use flow_core::{AttentionCall, AttentionShape, ModelSpec, device::ComputeDevice};
use flow_validate::codes::NO_KERNEL;

/// Asks the backend that is in force for each kind of attention call that the model makes on `device`, with the largest batch
/// of a rollout. `text_tokens` is the length of encoded text.
///
/// # Errors
/// [`TrainError::NoKernel`] with the backend's reason.
pub(super) fn check(
    config: &Config,
    arrangement: &Arrangement,
    spec: &ModelSpec,
    device: &ComputeDevice,
    text_tokens: usize,
) -> Result<(), TrainError> {
    let backend = arrangement.attention();
    let branches = if config.sampling.guidance_scale == 1.0 {
        1
    } else {
        2
    };
    let batch = config.sampling.micro_batch.max(1) * branches;
    let place = Place::on(device);
    let layers = spec
        .attentions
        .iter()
        .filter(|layer| layer.layers > 0 && layer.heads > 0);
    for layer in layers {
        let call = AttentionCall {
            place: place.clone(),
            dtype: arrangement.kernels().activations(),
            batch,
            ..call_of(layer, spec, text_tokens)
        };
        if let Err(declined) = backend.kernel(&call) {
            let message = format!(
                "the attention backend `{}` does not serve the model's attention of {} heads of {} channels on {}: {declined}",
                backend.name(),
                call.heads,
                call.head_dim,
                device.name()
            );
            let help = "remove the entry `attention_backend` if there is one, choose other heads for the model, or set \
                        `device.kind = \"cpu\"`";
            let found = Diagnostic::error(NO_KERNEL, message)
                .path("device.kind")
                .help(help);
            return Err(TrainError::NoKernel(Box::new(found)));
        }
    }
    Ok(())
}

/// The sizes of a layer's calls for one sample.
fn call_of(layer: &AttentionShape, spec: &ModelSpec, text_tokens: usize) -> AttentionCall {
    let tokens = |rows: &flow_core::Rows| spec.count_rows(*rows, text_tokens).max(1);
    let head_dim = layer.width / layer.heads;
    let keys: Vec<usize> = layer.keys.iter().map(tokens).collect();
    AttentionCall {
        place: Place::Host,
        dtype: burn::tensor::DType::F32,
        batch: 1,
        queries: layer.queries.iter().map(tokens).sum(),
        keys: [keys[0], keys[1..].iter().sum()],
        heads: layer.heads,
        kv_heads: layer.heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        mask: None,
        bias: None,
    }
}
