//! Pictures of whole pipelines of diffusers, from the latents of their last step.

use crate::common::{Named, decode, fixture_autoencoder, host, recorded_pipeline, with_exec};
use burn::tensor::Tensor;
use flow_autoencoder::{LatentScaling, Options, Pictures, ScaledLatent};
use flow_core::LatentShape;
use flow_core::device::ComputeDevice;

/// What a picture in 0 to 1 may differ by.
const TOLERANCE: f32 = 5e-4;

fn assert_pictures(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let pairs = found.iter().zip(expected);
    let largest = pairs.fold(0f32, |largest, (a, b)| largest.max((a - b).abs()));
    assert!(largest <= TOLERANCE, "{what}: {largest:e}");
}

/// Decodes the last latents of a pipeline's folder.
fn pictures_of(name: &str, latent: ScaledLatent) -> Pictures {
    let (autoencoder, weights) = fixture_autoencoder(&format!("pipelines/{name}"));
    let latent = autoencoder.scaling().unscale(latent);
    with_exec(&weights, |exec| {
        autoencoder.decode(exec, latent, &Options::default()).unwrap()
    })
}

fn rows(io: &Named, values: usize) -> Tensor<2> {
    let latents = &io["latents.4"].1;
    ComputeDevice::cpu().tensor(latents.clone(), [latents.len() / values, values])
}

#[test]
fn stable_diffusion_3_has_one_factor_and_shift() {
    let io = recorded_pipeline("sd3/oracle.safetensors");
    let shape = LatentShape {
        channels: 16,
        frames: 1,
        height: 8,
        width: 6,
    };
    let latent = ScaledLatent::of_rows(rows(&io, shape.values()), shape).unwrap();
    let pictures = pictures_of("sd3", latent);
    assert_pictures(
        "decoded_raw",
        &host(pictures.tensor().clone()),
        &io["decoded_raw"].1,
    );
    assert_pictures("image", &host(pictures.unit_pictures()), &io["image"].1);
    assert!(
        io["decoded_raw"].1.iter().any(|value| *value > 3.0),
        "it is far from clamped"
    );
}

#[test]
fn qwen_image_has_means_and_deviations_by_channel() {
    let io = recorded_pipeline("qwen-image/oracle.safetensors");
    // Two by two pixels of 16 channels are a token: [B, 4 · 3, 16 · 2 · 2], channels before rows before columns.
    let packed: Tensor<6> = rows(&io, 12 * 64).reshape([2, 4, 3, 16, 2, 2]);
    let latent = packed.permute([0, 3, 1, 4, 2, 5]).reshape([2, 16, 8, 6]);
    let pictures = pictures_of("qwen-image", ScaledLatent::of_pictures(latent));
    assert_pictures("image", &host(pictures.unit_pictures()), &io["image"].1);
}

#[test]
fn wan_makes_five_frames_of_two() {
    let io = recorded_pipeline("wan/oracle_unipc.safetensors");
    let shape = LatentShape {
        channels: 16,
        frames: 2,
        height: 4,
        width: 6,
    };
    let latent = ScaledLatent::of_rows(rows(&io, shape.values()), shape).unwrap();
    let unit = pictures_of("wan", latent).unit();
    assert_eq!(unit.dims(), [2, 3, 5, 32, 48]);
    // The pipeline has frames before colours.
    assert_pictures("image", &host(unit.permute([0, 2, 1, 3, 4])), &io["image"].1);
}

#[test]
fn scaling_there_and_back_changes_nothing_but_rounding() {
    let device = ComputeDevice::cpu();
    for name in ["kl", "wan"] {
        let (autoencoder, _) = fixture_autoencoder(name);
        let latent = crate::common::normal([1, 16, 1, 2, 3], 9);
        let scaled = ScaledLatent::new(latent.clone());
        let unscaled = autoencoder.scaling().unscale(scaled);
        assert!(crate::common::difference(&host(unscaled.tensor().clone()), &host(latent.clone())) > 0.1);
        let again = autoencoder.scaling().scale(unscaled).into_tensor();
        crate::common::assert_near(name, &host(again), &host(latent));
    }
    let scaling = LatentScaling::Uniform {
        factor: 1.5305,
        shift: 0.0609,
    };
    let one = ScaledLatent::new(device.tensor(vec![1.5305], [1, 1, 1, 1, 1]));
    assert_eq!(host(scaling.unscale(one).into_tensor()), [1.0609]);
}

#[test]
fn a_batch_of_a_pipeline_is_its_samples() {
    let io = recorded_pipeline("wan/oracle_unipc.safetensors");
    let (autoencoder, weights) = fixture_autoencoder("pipelines/wan");
    let shape = autoencoder.latent_shape(5, 32, 48).unwrap();
    let latent = ScaledLatent::of_rows(rows(&io, shape.values()), shape).unwrap();
    let latent = autoencoder.scaling().unscale(latent).into_tensor();
    let whole = decode(&autoencoder, &weights, latent.clone(), &Options::default());
    let first = decode(
        &autoencoder,
        &weights,
        latent.narrow(0, 0, 1),
        &Options::default(),
    );
    assert_eq!(whole[..first.len()], first);
}
