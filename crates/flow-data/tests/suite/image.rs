//! Conversions of images: what a picture file and a reward see.

use flow_data::{DataError, Image, ImageShape};

#[test]
fn a_value_in_8_bits_is_the_nearest_and_a_half_goes_up() {
    for whole in 0..256u16 {
        // The number half-way to the next, and floats about it.
        let middle = (f32::from(whole) + 0.5) / 127.5 - 1.0;
        for bits in middle.to_bits().saturating_sub(200)..middle.to_bits() + 200 {
            let value = f32::from_bits(bits);
            let scaled = (value.clamp(-1.0, 1.0) + 1.0) * 127.5;
            assert_eq!(Image::value_to_u8(value), scaled.round() as u8, "{value}");
        }
    }
    // A NaN with bits in the last places, too.
    for nothing in [
        f32::NAN,
        f32::from_bits(0x7fc0_00ff),
        f32::NEG_INFINITY,
        -3.0,
        -0.999,
    ] {
        assert_eq!(Image::value_to_u8(nothing), 0);
    }
    assert_eq!(Image::value_to_u8(f32::INFINITY), 255);
}

#[test]
fn grey_is_repeated_on_three_channels_and_values_are_clamped() {
    let shape = ImageShape {
        channels: 1,
        height: 1,
        width: 5,
    };
    let image = Image::new(shape, vec![-3.0, -1.0, 0.0, 1.0, f32::NAN]).unwrap();
    assert_eq!(
        image.to_rgb8(),
        [0, 0, 0, 0, 0, 0, 128, 128, 128, 255, 255, 255, 0, 0, 0]
    );
    assert!(!image.is_finite());
}

#[test]
fn eight_bit_values_survive_the_way_there_and_back() {
    let rgb: Vec<u8> = (0..=255).cycle().step_by(7).take(3 * 5 * 3).collect();
    let image = Image::from_rgb8(5, 3, &rgb).unwrap();
    assert_eq!(image.to_rgb8(), rgb);
    assert_eq!(
        image.at(1, 4, 2),
        f32::from(rgb[(4 * 3 + 2) * 3 + 1]) / 127.5 - 1.0
    );
}

#[test]
fn upscaling_repeats_pixels_and_leaves_factor_one_alone() {
    let shape = ImageShape {
        channels: 3,
        height: 2,
        width: 3,
    };
    let image = Image::new(shape, (0..18).map(|i| i as f32 / 18.0).collect()).unwrap();
    let large = image.upscale_nearest(4);
    assert_eq!(
        large.shape(),
        ImageShape {
            channels: 3,
            height: 8,
            width: 12
        }
    );
    for channel in 0..3 {
        for row in 0..8 {
            for column in 0..12 {
                assert_eq!(
                    large.at(channel, row, column),
                    image.at(channel, row / 4, column / 4)
                );
            }
        }
    }
    assert_eq!(large.downscale_mean(4).unwrap(), image);
    assert_eq!(large.downscale_mean(3), None);
    assert_eq!(large.downscale_mean(0), None);
    assert_eq!(large.downscale_mean(8), None);
    assert_eq!(image.upscale_nearest(1), image);
    assert_eq!(image.upscale_nearest(0), image);
}

#[test]
fn a_wrong_number_of_pixels_is_an_error_that_names_both_numbers() {
    let shape = ImageShape {
        channels: 3,
        height: 2,
        width: 2,
    };
    let error = Image::new(shape, vec![0.0; 11]).unwrap_err();
    assert_eq!(error, DataError::PixelCount { shape, found: 11 });
    assert_eq!(
        error.to_string(),
        "an image of 3×2×2 takes 12 pixel values, and 11 were given"
    );
    assert!(Image::from_rgb8(2, 2, &[0; 11]).is_err());
}
