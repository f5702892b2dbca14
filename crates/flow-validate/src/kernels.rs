//! Which kernels a GPU has for a config's attention and matrix products: where it has none, and where it has slower ones
//! than the config lets a user expect.
//!
//! The rules are those by which `flow-attention` and `flow-kernels` choose on a CUDA device, as data, so that they are known
//! in every build and for a device that is not there. Tests compare them with what those choose.

use crate::codes::{NO_KERNEL, SLOW_KERNELS};
use crate::{Capabilities, Gpu, Machine, features};
use flow_config::{Config, DType, DeviceKind, Diagnostic, Finetune};

/// Channels of a head that any attention kernel for GPUs takes, at most (`flow-attention-cube`, `call` and `portable`).
pub const MOST_HEAD_CHANNELS: usize = 256;

/// Channels of a head, of a layer and of an adapter must be a multiple of this for tensor cores: rows of bf16 then begin at
/// multiples of 16 bytes, which the copies of those kernels want.
pub const TENSOR_CORE_MULTIPLE: usize = 8;

/// Share of a model's products that may be slow without a word: the layers at its ends, of as many channels as pixels have.
const NEGLIGIBLE: f64 = 0.05;

/// Whether attention of heads of `channels` channels in bf16 runs on tensor cores of a GPU that has them.
pub fn attends_on_tensor_cores(channels: usize) -> bool {
    (1..=MOST_HEAD_CHANNELS).contains(&channels) && channels.is_multiple_of(TENSOR_CORE_MULTIPLE)
}

/// Whether products with a matrix `[output, input]` in bf16 run on tensor cores of a GPU that has them, forward and backward.
pub fn multiplies_on_tensor_cores([output, input]: [usize; 2]) -> bool {
    output.is_multiple_of(TENSOR_CORE_MULTIPLE) && input.is_multiple_of(TENSOR_CORE_MULTIPLE)
}

/// Everything that is known of a config's kernels before it runs.
pub(crate) fn check(config: &Config, machine: &Machine, model: Option<&Capabilities<'_>>) -> Vec<Diagnostic> {
    if config.device.kind != DeviceKind::Cuda {
        return Vec::new();
    }
    let mut found = Vec::new();
    found.extend(model.and_then(no_attention));
    found.extend(named_backend(config, machine.gpu.as_ref(), model));
    found.extend(slow(config, machine.gpu.as_ref(), model));
    found
}

/// Channels of a head of each kind of the model's attention layers, each once.
fn head_channels(model: &Capabilities<'_>) -> Vec<usize> {
    let layers = model.spec.attentions.iter();
    let layers = layers.filter(|attention| attention.layers > 0 && attention.heads > 0);
    let mut channels: Vec<usize> = layers
        .map(|attention| attention.width / attention.heads)
        .collect();
    channels.sort_unstable();
    channels.dedup();
    channels
}

/// The keys that say how many channels a head has.
fn head_keys(model: &Capabilities<'_>) -> (String, String) {
    let section = format!("model.{}", model.spec.architecture);
    match model.spec.architecture.as_str() {
        "dit" => (format!("{section}.heads"), format!("{section}.hidden")),
        _ => (
            format!("{section}.attention_head_dim"),
            format!("{section}.num_attention_heads"),
        ),
    }
}

/// Attention that no kernel for GPUs computes.
fn no_attention(model: &Capabilities<'_>) -> Option<Diagnostic> {
    let too_wide = head_channels(model)
        .into_iter()
        .find(|channels| *channels > MOST_HEAD_CHANNELS)?;
    let (key, other) = head_keys(model);
    let message = format!(
        "no attention kernel of the device \"cuda\" takes heads of {too_wide} channels; it is at most {MOST_HEAD_CHANNELS}"
    );
    let help =
        format!("make heads narrower: more of them in `{key}` or `{other}`, or set `device.kind = \"cpu\"`");
    Some(
        Diagnostic::error(NO_KERNEL, message)
            .path(key)
            .related(["device.kind"])
            .help(help),
    )
}

/// An attention backend that `attention_backend` names and that declines the model's calls on this device.
fn named_backend(config: &Config, gpu: Option<&Gpu>, model: Option<&Capabilities<'_>>) -> Option<Diagnostic> {
    let entries = config.acceleration.shared.iter().enumerate();
    let mut entries =
        entries.filter(|(_, entry)| entry.name.to_lowercase().replace('-', "_") == "attention_backend");
    let (position, entry) = entries.next()?;
    let backend = entry.params.get("backend")?.as_str()?.to_lowercase();
    let on_tensor_cores = ["wgmma", "mma"].contains(&&*backend);
    let odd = (model.map(head_channels).unwrap_or_default().into_iter())
        .find(|channels| on_tensor_cores && !attends_on_tensor_cores(*channels));
    let why = match (gpu, &*backend, odd) {
        (Some(gpu), "wgmma", _) if !gpu.is_hopper() => {
            format!(
                "wants a GPU of compute capability 9.0 (Hopper), and {} has {}",
                gpu.name,
                gpu.capability()
            )
        }
        (Some(gpu), "mma", _) if !gpu.has_mma() => {
            format!(
                "wants a GPU of compute capability 8.0 or later, and {} has {}",
                gpu.name,
                gpu.capability()
            )
        }
        (.., Some(channels)) => format!(
            "wants heads of a multiple of {TENSOR_CORE_MULTIPLE} channels, at most {MOST_HEAD_CHANNELS}, and the model's have \
             {channels}"
        ),
        _ => return None,
    };
    let path = format!("acceleration.shared.{position}.params.backend");
    Some(
        Diagnostic::error(NO_KERNEL, format!("the attention backend `{backend}` {why}"))
            .path(path)
            .related(["device.kind"])
            .help("remove the entry: the device's own choice takes the fastest kernel that serves the model"),
    )
}

/// Kernels that are slower than those which the device has for other settings.
fn slow(config: &Config, gpu: Option<&Gpu>, model: Option<&Capabilities<'_>>) -> Vec<Diagnostic> {
    let slow = |path: &str, message: String, help: String| {
        Diagnostic::warning(SLOW_KERNELS, message).path(path).help(help)
    };
    if config.device.dtype == DType::F32 {
        let message = "with `device.dtype = \"f32\"` a CUDA device computes attention and matrix products by the portable \
                       kernels, without tensor cores: several times slower than in bf16";
        let help = "set `device.dtype = \"bf16\"`; weights, losses and the optimizer's state stay f32";
        return vec![slow("device.dtype", message.into(), help.into())];
    }
    if let Some(gpu) = gpu.filter(|gpu| !gpu.has_mma()) {
        let message = format!(
            "{} has compute capability {}: attention and matrix products run by the portable kernels, since those for tensor \
             cores want 8.0 or later",
            gpu.name,
            gpu.capability()
        );
        return vec![slow(
            "device.kind",
            message,
            "use a GPU of NVIDIA's Ampere generation or later".into(),
        )];
    }
    let Some(model) = model else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let odd = head_channels(model)
        .into_iter()
        .find(|channels| *channels <= MOST_HEAD_CHANNELS && !attends_on_tensor_cores(*channels));
    if let Some(channels) = odd {
        let (key, _) = head_keys(model);
        let message = format!(
            "attention of heads of {channels} channels runs by the portable kernels, without tensor cores, which want a multiple \
             of {TENSOR_CORE_MULTIPLE}"
        );
        let help = format!("choose `{key}` so that a head has a multiple of {TENSOR_CORE_MULTIPLE} channels");
        found.push(slow(&key, message, help));
    }
    let adapted = config.model.finetune == Finetune::Lora;
    let is_adapter = |name: &str| name.contains("lora_") || name.contains(".lora");
    let layers = model.layout.specs().iter();
    let layers = layers.filter(|weight| !is_adapter(&weight.name));
    let layers = layers.filter_map(|weight| {
        let [output, input] = features(weight)?;
        // Text counts as many tokens as encoders commonly give (77 of CLIP's).
        let rows = model.spec.count_rows(weight.rows, 77);
        Some((&*weight.name, [output, input], (rows * output * input) as f64))
    });
    let layers: Vec<(&str, [usize; 2], f64)> = layers.collect();
    let odd = |layer: &&(&str, [usize; 2], f64)| !multiplies_on_tensor_cores(layer.1);
    let odd: Vec<_> = layers.iter().filter(odd).collect();
    let all: f64 = layers.iter().map(|(.., work)| work).sum();
    let share = odd.iter().map(|(.., work)| work).sum::<f64>() / all.max(1.0);
    if let (Some((name, [output, input], _)), true) = (odd.first(), share > NEGLIGIBLE) {
        let message = format!(
            "{} of the model's layers, {:.0} % of its products, run by the portable kernels, without tensor cores, which want \
             inputs and outputs of a multiple of {TENSOR_CORE_MULTIPLE} channels: for instance `{name}`, {output} x {input}",
            odd.len(),
            100.0 * share
        );
        let help = format!("choose widths of the model that are multiples of {TENSOR_CORE_MULTIPLE}");
        found.push(slow("model", message, help));
    }
    if adapted && !config.lora.rank.is_multiple_of(TENSOR_CORE_MULTIPLE) {
        let message = format!(
            "layers with adapters of rank {} run by the portable kernels, without tensor cores, which want a multiple of \
             {TENSOR_CORE_MULTIPLE}",
            config.lora.rank
        );
        let help = format!("set `lora.rank` to a multiple of {TENSOR_CORE_MULTIPLE}");
        found.push(slow("lora.rank", message, help));
    }
    found
}
