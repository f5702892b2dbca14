//! `AutoencoderKLWan` and `AutoencoderKLQwenImage` against diffusers.

use crate::common::{assert_near, check_parity, decode, encode, fixture_autoencoder, tensor, tensors};
use flow_autoencoder::{BurnConvolutions, Options, Tiling};
use std::sync::Arc;

const TILES: Tiling = Tiling { tile: 4, stride: 3 };

#[test]
fn moments_videos_tiles_and_gradients_of_three_chunks_are_those_of_diffusers() {
    check_parity("wan", "video", TILES);
}

#[test]
fn moments_pictures_tiles_and_gradients_are_those_of_diffusers() {
    check_parity("qwenimage", "video", TILES);
}

#[test]
fn with_burns_convolutions_videos_pictures_and_latents_are_the_same() {
    for (name, input) in [("wan", "in.video"), ("qwenimage", "in.video"), ("kl", "in.image")] {
        let (autoencoder, weights) = fixture_autoencoder(name);
        let autoencoder = autoencoder.with_convolutions(Arc::new(BurnConvolutions));
        let io = tensors(&format!("{name}/io.safetensors"));
        let plain = Options::default();
        let decoded = decode(&autoencoder, &weights, tensor(&io, "in.latent"), &plain);
        assert_near(name, &decoded, &io["decoded"].1);
        let moments = encode(&autoencoder, &weights, tensor(&io, input), &plain);
        assert_near(name, &moments, &io["moments"].1);
    }
}

#[test]
fn the_decoder_stops_at_both_ends_of_the_range() {
    let (autoencoder, weights) = fixture_autoencoder("wan");
    let io = tensors("wan/io.safetensors");
    let decoded = decode(
        &autoencoder,
        &weights,
        tensor(&io, "in.latent"),
        &Options::default(),
    );
    let (low, high) = decoded
        .iter()
        .fold((0f32, 0f32), |(low, high), it| (low.min(*it), high.max(*it)));
    assert_eq!((low, high), (-1.0, 1.0));
}

/// Values of the first frames of `[1, C, F, H, W]`.
fn first_frames(values: &[f32], shape: [usize; 3], frames: usize) -> Vec<f32> {
    let [channels, of, pixels] = shape;
    let by_channel = values.chunks_exact(of * pixels).take(channels);
    by_channel.flat_map(|it| it[..frames * pixels].to_vec()).collect()
}

#[test]
fn a_frame_depends_on_no_later_one() {
    let (autoencoder, weights) = fixture_autoencoder("wan");
    let io = tensors("wan/io.safetensors");
    let latent = tensor(&io, "in.latent");
    let whole = decode(&autoencoder, &weights, latent.clone(), &Options::default());
    for frames in [1, 2] {
        let part = decode(
            &autoencoder,
            &weights,
            latent.clone().narrow(2, 0, frames),
            &Options::default(),
        );
        let made = 1 + 4 * (frames - 1);
        assert_eq!(
            part,
            first_frames(&whole, [3, 9, 32 * 48], made),
            "{frames} frames of the latent"
        );
    }
    let video = tensor(&io, "in.video");
    let whole = encode(&autoencoder, &weights, video.clone(), &Options::default());
    for frames in [1, 5] {
        let part = encode(
            &autoencoder,
            &weights,
            video.clone().narrow(2, 0, frames),
            &Options::default(),
        );
        let kept = 1 + (frames - 1) / 4;
        assert_eq!(
            part,
            first_frames(&whole, [32, 3, 4 * 6], kept),
            "{frames} frames of the video"
        );
    }
}
