//! `AutoencoderKL` against diffusers.

mod common;

use common::{
    check_parity, decode, encode, fixture_autoencoder, host, noise, normal, tensor, tensors, with_exec,
};
use flow_autoencoder::{Options, Pictures, Tiling};

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
    common::assert_near("sample", &found, &expected);
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
