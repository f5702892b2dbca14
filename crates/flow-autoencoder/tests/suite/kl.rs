//! `AutoencoderKL` against diffusers.

use crate::common::{
    KL, check_parity, decode, encode, fixture_autoencoder, host, noise, normal, tensor, tensors, with_exec,
};
use burn::backend::DispatchTensor;
use flow_autoencoder::{Autoencoder, AutoencoderConfig, Latent, Options, Pictures, Tiling};
use flow_core::device::ComputeDevice;
use flow_core::ops::Stash;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, CallContext, InferencePass,
    KeyValue, Refusal, Stage, Weights,
};
use flow_kernels::CpuKernels;
use std::path::Path;
use std::sync::Arc;

const TILES: Tiling = Tiling { tile: 4, stride: 3 };

#[test]
fn moments_pictures_tiles_and_gradients_are_those_of_diffusers() {
    check_parity("kl", "image", TILES);
}

#[test]
fn the_decoder_does_not_clamp_and_the_picture_does() {
    let (autoencoder, weights) = fixture_autoencoder("kl");
    let io = tensors("kl/io.safetensors");
    let decoded = decode(
        &autoencoder,
        &weights,
        tensor(&io, "in.latent"),
        &Options::default(),
    );
    assert!(
        decoded.iter().any(|value| *value < -2.0),
        "as far as diffusers goes"
    );
    let pictures = Pictures::new(tensor(&io, "decoded"));
    let expected: Vec<f32> = io["decoded"]
        .1
        .iter()
        .map(|value| (value / 2.0 + 0.5).clamp(0.0, 1.0))
        .collect();
    assert_eq!(host(pictures.unit()), expected);
    let bytes = pictures.frames(1).unwrap();
    let (colours, pixels) = (3, 64 * 48);
    let second = &expected[colours * pixels..];
    let red_of_last = second[pixels - 1];
    assert_eq!(bytes.len(), 1);
    assert_eq!(
        bytes[0][3 * (pixels - 1)],
        (red_of_last * 255.0).round_ties_even() as u8
    );
    assert!(pictures.frames(2).is_err());
}

#[test]
fn a_sample_is_the_mean_and_noise_times_the_deviation() {
    let (autoencoder, weights) = fixture_autoencoder("kl");
    let io = tensors("kl/io.safetensors");
    let found = with_exec(&weights, |exec| {
        let pictures = Pictures::new(tensor(&io, "in.image"));
        let moments = autoencoder.encode(exec, pictures, &Options::default()).unwrap();
        host(moments.sample(normal([2, 16, 1, 8, 6], 5)).into_tensor())
    });
    let noise = noise(found.len(), 5);
    let expected: Vec<f32> = (0..found.len())
        .map(|at| io["mode"].1[at] + io["std"].1[at] * noise[at])
        .collect();
    crate::common::assert_near("sample", &found, &expected);
}

#[test]
fn a_picture_does_not_depend_on_what_is_decoded_beside_it_nor_on_how_many_at_once() {
    let (autoencoder, weights) = fixture_autoencoder("kl");
    let io = tensors("kl/io.safetensors");
    let latent = tensor(&io, "in.latent");
    let of = |samples| Options {
        samples,
        ..Options::default()
    };
    let together = decode(&autoencoder, &weights, latent.clone(), &of(Some(2)));
    assert_eq!(
        together,
        decode(&autoencoder, &weights, latent.clone(), &of(Some(1)))
    );
    assert_eq!(
        together,
        decode(&autoencoder, &weights, latent.clone(), &of(None))
    );
    let second = decode(&autoencoder, &weights, latent.narrow(0, 1, 1), &of(None));
    assert_eq!(together[second.len()..], second);
}

#[test]
fn pictures_no_larger_than_a_tile_are_not_tiled() {
    let (autoencoder, weights) = fixture_autoencoder("kl");
    let io = tensors("kl/io.safetensors");
    let latent = tensor(&io, "in.latent");
    let of = |tile| Options {
        tiling: Some(Tiling {
            tile,
            stride: tile - 1,
        }),
        ..Options::default()
    };
    let whole = decode(&autoencoder, &weights, latent.clone(), &Options::default());
    assert_eq!(decode(&autoencoder, &weights, latent.clone(), &of(8)), whole);
    assert_ne!(decode(&autoencoder, &weights, latent, &of(7)), whole);
    let image = tensor(&io, "in.image");
    let moments = encode(&autoencoder, &weights, image.clone(), &Options::default());
    assert_eq!(encode(&autoencoder, &weights, image, &of(8)), moments);
    // Of 64 pixels a side, with an eighth of them in the latent.
    assert_eq!(autoencoder.spec().tiling, Tiling { tile: 8, stride: 6 });
}

#[test]
fn convolutions_of_one_tap_come_behind_the_encoder_and_before_the_decoder() {
    let (plain, plain_weights) = fixture_autoencoder("kl");
    let text = std::fs::read_to_string(crate::common::fixture(KL).join("config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_str(&text).unwrap();
    for key in ["use_quant_conv", "use_post_quant_conv"] {
        settings[key] = true.into();
    }
    let device = ComputeDevice::cpu();
    let config = AutoencoderConfig::read(&settings, Path::new("config.json")).unwrap();
    let autoencoder = Autoencoder::new(&config, &device).unwrap();
    let mut weights = Weights::zeros(autoencoder.layout().clone(), &device);
    for (index, spec) in autoencoder.layout().specs().iter().enumerate() {
        let values = match (&*spec.name, plain.layout().position(&spec.name)) {
            (_, Ok(position)) => plain_weights.host(position),
            ("quant_conv.bias" | "post_quant_conv.bias", _) => vec![0.5; spec.shape[0]],
            // Twice the channel of the same number.
            _ => (0..spec.shape[0] * spec.shape[1])
                .map(|at| {
                    if at / spec.shape[1] == at % spec.shape[1] {
                        2.0
                    } else {
                        0.0
                    }
                })
                .collect(),
        };
        weights.set_host(index, values).unwrap();
    }
    let (io, options) = (tensors("kl/io.safetensors"), Options::default());
    let moments = encode(&autoencoder, &weights, tensor(&io, "in.image"), &options);
    let expected: Vec<f32> = io["moments"].1.iter().map(|it| 2.0 * it + 0.5).collect();
    crate::common::assert_near("moments", &moments, &expected);
    let latent = (tensor(&io, "in.latent") - 0.5) / 2.0;
    let decoded = decode(&autoencoder, &weights, latent, &options);
    crate::common::assert_near("decoded", &decoded, &io["decoded"].1);
}

/// Takes no call, as a backend for heads of at most 128 channels does with 512.
#[derive(Debug)]
struct Declining;

impl AttentionBackend for Declining {
    fn name(&self) -> &str {
        "declining"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability::HOST
    }

    fn kernel(&self, _: &AttentionCall) -> Result<String, Refusal> {
        Err(Refusal::because("too many channels"))
    }

    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        _: &dyn Stash,
        _: &DispatchTensor,
        _: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        Err(self.kernel(call).expect_err("none is taken"))
    }
}

#[test]
fn where_the_plans_attention_takes_no_head_of_so_many_channels_pictures_are_the_same() {
    let (autoencoder, weights) = fixture_autoencoder("kl");
    let io = tensors("kl/io.safetensors");
    let plan = Backends::new(Arc::new(Declining), Arc::new(CpuKernels::default()));
    let rollout = InferencePass::new(&weights, Arc::new(plan));
    let exec = rollout.exec(CallContext::single(Stage::Evaluation));
    let latent = Latent::new(tensor(&io, "in.latent"));
    let pictures = autoencoder.decode(&exec, latent, &Options::default()).unwrap();
    crate::common::assert_near("decoded", &host(pictures.into_tensor()), &io["decoded"].1);
}
