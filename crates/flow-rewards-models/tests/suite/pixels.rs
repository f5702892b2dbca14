//! Pixels against Pillow, transformers' image processor and torchvision.

use crate::common::Recorded;
use flow_data::{Image, ImageShape};
use flow_rewards_models::pixels::{CLIP_MEAN, CLIP_STD, Preprocessor, Resizing};

const SIDE: usize = 32;

#[test]
fn bytes_are_those_of_pillow_with_either_crop() {
    let recorded = Recorded::read();
    for (resizing, name) in [
        (Resizing::Pillow, "pillow"),
        (Resizing::PillowTorchCrop, "pillow_torch_crop"),
    ] {
        let preprocessor = Preprocessor::clip(resizing, SIDE);
        for (image, wanted) in recorded
            .images
            .iter()
            .zip(recorded.bytes[name].chunks_exact(SIDE * SIDE * 3))
        {
            let found = preprocessor.resized_rgb8(image).unwrap();
            let differing = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{name}, an image of {}", image.shape());
            let pixels = preprocessor.pixels(image).unwrap();
            for (at, pixel) in pixels.iter().enumerate() {
                let (colour, place) = (at / (SIDE * SIDE), at % (SIDE * SIDE));
                let unit = f32::from(wanted[place * 3 + colour]) / 255.0;
                let normalised = (unit - CLIP_MEAN[colour]) / CLIP_STD[colour];
                assert!((pixel - normalised).abs() < 1e-6, "{pixel} for {normalised}");
            }
        }
    }
}

#[test]
fn of_three_pixels_too_many_transformers_leaves_out_one_before_and_torchvision_two() {
    // Every row is of its number's grey, so the first row that is left says how many went.
    let rows = SIDE + 3;
    let rgb: Vec<u8> = (0..rows).flat_map(|row| vec![row as u8; 3 * SIDE]).collect();
    let image = flow_data::Image::from_rgb8(rows, SIDE, &rgb).unwrap();
    let first = |resizing| Preprocessor::clip(resizing, SIDE).resized_rgb8(&image).unwrap()[0];
    assert_eq!(first(Resizing::Pillow), 1);
    assert_eq!(first(Resizing::PillowTorchCrop), 2);
}

#[test]
fn pixels_of_tensors_are_those_of_torchvision() {
    let recorded = Recorded::read();
    for (resizing, name) in [
        (Resizing::TensorBilinear, "tensor_bilinear"),
        (Resizing::TensorBicubic, "tensor_bicubic"),
    ] {
        let preprocessor = Preprocessor::clip(resizing, SIDE);
        // Those that were recorded.
        let images = &recorded.images[1..4];
        let wanted = recorded.floats[name].chunks_exact(SIDE * SIDE * 3);
        assert_eq!(wanted.len(), images.len());
        for (image, wanted) in images.iter().zip(wanted) {
            let found = preprocessor.pixels(image).unwrap();
            let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0, f32::max);
            assert!(off < 1e-5, "{name}, an image of {}: off by {off}", image.shape());
        }
    }
}

#[test]
fn an_image_in_grey_is_that_of_three_equal_colours_and_values_outside_are_clamped() {
    let shape = ImageShape {
        channels: 1,
        height: 19,
        width: 40,
    };
    let values: Vec<f32> = (0..shape.len()).map(|at| (at as f32 * 0.7).sin() * 1.2).collect();
    let grey = Image::new(shape, values.clone()).unwrap();
    let clamped: Vec<f32> = values.iter().map(|value| value.clamp(-1.0, 1.0)).collect();
    let colours = ImageShape { channels: 3, ..shape };
    let colours = Image::new(colours, clamped.repeat(3)).unwrap();
    for resizing in [
        Resizing::Pillow,
        Resizing::PillowTorchCrop,
        Resizing::TensorBilinear,
        Resizing::TensorBicubic,
    ] {
        let preprocessor = Preprocessor::clip(resizing, 7);
        let pixels = preprocessor.pixels(&grey).unwrap();
        assert_eq!(pixels.len(), 3 * 7 * 7);
        assert_eq!(pixels, preprocessor.pixels(&colours).unwrap());
    }
}

#[test]
fn a_line_of_pixels_and_one_pixel_are_resized_and_nothing_is_not() {
    let of = |height: usize, width: usize| {
        let shape = ImageShape {
            channels: 3,
            height,
            width,
        };
        Image::filled(shape, 0.25)
    };
    for resizing in [
        Resizing::Pillow,
        Resizing::TensorBilinear,
        Resizing::TensorBicubic,
    ] {
        let preprocessor = Preprocessor::clip(resizing, 24);
        for image in [of(1, 4001), of(3000, 1), of(1, 1)] {
            let pixels = preprocessor.pixels(&image).unwrap();
            let first = pixels[0];
            let plane = &pixels[..24 * 24];
            assert!(
                plane.iter().all(|value| (value - first).abs() < 1e-5),
                "{resizing:?}"
            );
        }
        assert!(preprocessor.pixels(&of(0, 5)).unwrap_err().contains("no pixels"));
        let mut broken = of(2, 2);
        broken.pixels_chw[7] = f32::NAN;
        assert!(preprocessor.pixels(&broken).unwrap_err().contains("value 7"));
    }
}

#[test]
fn pixels_of_several_images_are_those_of_each_and_the_first_without_any_is_named() {
    let of = |height: usize, width: usize, step: f32| {
        let shape = ImageShape {
            channels: 3,
            height,
            width,
        };
        let values = (0..shape.len()).map(|at| (at as f32 * step).sin()).collect();
        Image::new(shape, values).unwrap()
    };
    // More rows than a thread takes at a time, and fewer.
    let images = [of(131, 97, 0.7), of(19, 240, 0.3), of(33, 33, 0.9)];
    for resizing in [Resizing::PillowTorchCrop, Resizing::TensorBicubic] {
        let preprocessor = Preprocessor::clip(resizing, 37);
        let each: Vec<f32> = images
            .iter()
            .flat_map(|image| preprocessor.pixels(image).unwrap())
            .collect();
        assert_eq!(preprocessor.pixels_of_all(&images.each_ref()).unwrap(), each);
    }
    let mut broken = images[0].clone();
    let last = broken.pixels_chw.len() - 1;
    broken.pixels_chw[last] = f32::INFINITY;
    let nothing = of(0, 5, 1.0);
    let preprocessor = Preprocessor::clip(Resizing::Pillow, 37);
    let (index, problem) = preprocessor
        .pixels_of_all(&[&images[1], &broken, &nothing])
        .unwrap_err();
    assert_eq!(index, 1);
    assert!(problem.contains(&format!("value {last}")), "{problem}");
}
