//! Pictures of files: what a person sees is what is read.

use flow_data::{Picture, picture};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{DynamicImage, ExtendedColorType, GrayImage, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use std::io::Cursor;

fn png(picture: &DynamicImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    picture
        .write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)
        .unwrap();
    bytes
}

fn refused(bytes: &[u8]) -> String {
    Picture::decode(bytes).unwrap_err().to_string()
}

/// The left part red, the right part blue, of 16 by 8 pixels.
fn red_and_blue() -> RgbImage {
    RgbImage::from_fn(16, 8, |x, _| match x < 8 {
        true => Rgb([255, 0, 0]),
        false => Rgb([0, 0, 255]),
    })
}

#[test]
fn what_is_transparent_lies_over_white() {
    let pixels = RgbaImage::from_fn(3, 1, |x, _| Rgba([200, 100, 0, [0, 128, 255][x as usize]]));
    let read = Picture::decode(&png(&DynamicImage::from(pixels))).unwrap();
    // 255 + (c - 255) · 128 / 255 in the middle, rounded.
    let half = |colour: f64| (255.0 + (colour - 255.0) * 128.0 / 255.0).round() as u8;
    let wanted = [[255; 3], [half(200.0), half(100.0), half(0.0)], [200, 100, 0]];
    assert_eq!(read.rgb8(), wanted.concat());
}

#[test]
fn grey_and_sixteen_bits_become_colours_of_eight() {
    let grey = GrayImage::from_fn(2, 1, |x, _| Luma([[7, 250][x as usize]]));
    let read = Picture::decode(&png(&DynamicImage::from(grey))).unwrap();
    assert_eq!(read.rgb8(), [7, 7, 7, 250, 250, 250]);
    let deep = image::ImageBuffer::from_fn(1, 1, |_, _| Rgb([65535u16, 0, 257 * 99]));
    let read = Picture::decode(&png(&DynamicImage::ImageRgb16(deep))).unwrap();
    assert_eq!(read.rgb8(), [255, 0, 99]);
}

/// A JPEG with an EXIF block that holds the orientation alone.
fn jpeg_with_orientation(pixels: &RgbImage, orientation: u16) -> Vec<u8> {
    let mut plain = Vec::new();
    JpegEncoder::new_with_quality(&mut plain, 100)
        .encode_image(pixels)
        .unwrap();
    // TIFF, little-endian: one entry, tag 0x0112, a short.
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend(orientation.to_le_bytes());
    exif.extend([0; 6]);
    let mut bytes = plain[..2].to_vec();
    bytes.extend([0xff, 0xe1]);
    bytes.extend((exif.len() as u16 + 2).to_be_bytes());
    bytes.extend(exif);
    bytes.extend(&plain[2..]);
    bytes
}

#[test]
fn a_photograph_stands_upright_as_exif_says() {
    let read = |orientation| Picture::decode(&jpeg_with_orientation(&red_and_blue(), orientation)).unwrap();
    let is_red = |picture: &Picture, x: usize, y: usize| {
        let pixel = &picture.rgb8()[(y * picture.width() + x) * 3..][..3];
        pixel[0] > 200 && pixel[2] < 60
    };
    let as_it_is = read(1);
    assert_eq!((as_it_is.width(), as_it_is.height()), (16, 8));
    assert!(is_red(&as_it_is, 2, 4) && !is_red(&as_it_is, 13, 4));
    // Turned by half, and by a quarter to the right: left becomes top.
    let half = read(3);
    assert!(!is_red(&half, 2, 4) && is_red(&half, 13, 4));
    let quarter = read(6);
    assert_eq!((quarter.width(), quarter.height()), (8, 16));
    assert!(is_red(&quarter, 4, 2) && !is_red(&quarter, 4, 13));
}

/// A baseline JPEG of 8 by 8 pixels of one colour in four components, as Photoshop writes CMYK: 0 is full ink.
fn cmyk_jpeg(ink: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0xd8];
    let mut segment = |marker: u8, body: &[u8]| {
        bytes.extend([0xff, marker]);
        bytes.extend((body.len() as u16 + 2).to_be_bytes());
        bytes.extend(body);
    };
    segment(0xee, b"Adobe\0\x64\0\0\0\0\0");
    segment(0xdb, &[&[0][..], &[1; 64]].concat());
    let components: Vec<u8> = (1..=4).flat_map(|id| [id, 0x11, 0]).collect();
    segment(0xc0, &[&[8, 0, 8, 0, 8, 4][..], &components].concat());
    // Twelve categories of 4 bits each; one code of 1 bit, the end of the block.
    let mut dc = vec![0u8; 17];
    dc[4] = 12;
    dc.extend(0..12);
    segment(0xc4, &dc);
    let mut ac = vec![0u8; 17];
    (ac[0], ac[1]) = (0x10, 1);
    ac.push(0);
    segment(0xc4, &ac);
    let scanned: Vec<u8> = (1..=4).flat_map(|id| [id, 0]).collect();
    segment(0xda, &[&[4][..], &scanned, &[0, 63, 0]].concat());
    let mut bits = String::new();
    for value in ink {
        // The mean of a block, times 8.
        let dc = (i32::from(value) - 128) * 8;
        let category = 32 - dc.unsigned_abs().leading_zeros();
        bits.push_str(&format!("{category:04b}"));
        if category > 0 {
            let coded = if dc < 0 { dc + (1 << category) - 1 } else { dc };
            bits.push_str(&format!("{coded:0width$b}", width = category as usize));
        }
        bits.push('0');
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    for byte in bits.as_bytes().chunks(8) {
        let byte = byte.iter().fold(0u8, |byte, bit| byte << 1 | (bit - b'0'));
        bytes.push(byte);
        if byte == 0xff {
            bytes.push(0);
        }
    }
    bytes.extend([0xff, 0xd9]);
    bytes
}

#[test]
fn cmyk_of_print_shops_becomes_the_colours_that_it_prints() {
    for (ink, wanted) in [
        ([255, 255, 255, 255], [255u8, 255, 255]),
        ([0, 255, 255, 255], [0, 255, 255]),
        ([255, 0, 128, 255], [255, 0, 128]),
        ([255, 255, 255, 0], [0, 0, 0]),
    ] {
        let read = Picture::decode(&cmyk_jpeg(ink)).unwrap();
        assert_eq!((read.width(), read.height()), (8, 8));
        for (found, wanted) in read.rgb8()[..3].iter().zip(wanted) {
            assert!(found.abs_diff(wanted) <= 2, "{ink:?}: {:?}", &read.rgb8()[..3]);
        }
    }
}

#[test]
fn webp_is_read_and_the_contents_decide_whatever_the_name_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    let pixels = red_and_blue();
    WebPEncoder::new_lossless(&mut bytes)
        .encode(&pixels, 16, 8, ExtendedColorType::Rgb8)
        .unwrap();
    let path = folder.path().join("photo.JPG");
    std::fs::write(&path, bytes).unwrap();
    picture::look(&path).unwrap();
    assert_eq!(Picture::read(&path).unwrap().rgb8(), pixels.as_raw());
}

#[test]
fn a_picture_is_covered_and_cropped_in_the_middle() {
    // Three parts of 40 columns: fitted to a square, the middle one is left.
    let pixels = RgbImage::from_fn(120, 40, |x, _| match x / 40 {
        0 => Rgb([255, 0, 0]),
        1 => Rgb([0, 255, 0]),
        _ => Rgb([0, 0, 255]),
    });
    let wide = Picture::decode(&png(&DynamicImage::from(pixels))).unwrap();
    let square = wide.fitted(20, 20);
    assert_eq!((square.width(), square.height()), (20, 20));
    let middle = square.rgb8().chunks(3).enumerate();
    for (index, pixel) in middle.filter(|(index, _)| (3..17).contains(&(index % 20))) {
        assert_eq!(pixel, [0, 255, 0], "pixel {index}");
    }
    assert!(!wide.is_smaller_than(120, 40) && wide.is_smaller_than(120, 41));
    assert_eq!(wide.fitted(120, 40), wide);
    // A size that the proportions do not meet exactly.
    let odd = wide.fitted(37, 53);
    assert_eq!((odd.width(), odd.height()), (37, 53));
}

#[test]
fn averages_survive_shrinking_and_values_are_those_of_models() {
    // Stripes of single pixels: without antialiasing some would be all black or all white.
    let pixels = RgbImage::from_fn(64, 64, |x, _| Rgb([if x % 2 == 0 { 0 } else { 255 }; 3]));
    let small = Picture::decode(&png(&DynamicImage::from(pixels)))
        .unwrap()
        .fitted(8, 8);
    assert!(
        small.rgb8().iter().all(|value| value.abs_diff(128) < 16),
        "{small:?}"
    );
    let corners = Picture::from_rgb8(2, 1, vec![255, 0, 0, 0, 0, 255]).unwrap();
    let image = corners.to_image();
    assert_eq!((image.channels, image.height, image.width), (3, 1, 2));
    assert_eq!(image.pixels_chw, [1.0, -1.0, -1.0, -1.0, -1.0, 1.0]);
    let grey = corners.to_grey();
    // 0.299 and 0.114 of the range from -1 to 1.
    for (found, wanted) in grey.pixels_chw.iter().zip([2.0 * 0.299 - 1.0, 2.0 * 0.114 - 1.0]) {
        assert!((found - wanted).abs() < 1e-6, "{found} for {wanted}");
    }
    assert!(Picture::from_rgb8(2, 1, vec![0; 7]).is_err() && Picture::from_rgb8(0, 1, vec![]).is_err());
}

#[test]
fn what_is_no_picture_is_named() {
    assert!(refused(b"").contains("empty"));
    assert!(refused(b"version https://git-lfs.github.com/spec/v1\noid").contains("git lfs pull"));
    assert!(refused(b"<!DOCTYPE html>").contains("HTML"));
    assert!(refused(b"GIF89a.......").contains("Gif"));
    assert!(refused(b"hello, world").contains("no picture"));
    let whole = png(&DynamicImage::from(red_and_blue()));
    assert!(refused(&whole[..whole.len() / 2]).contains("damaged or cut off"));
    // An animation of one frame: the chunk that counts frames stands behind the header.
    let mut control = b"acTL".to_vec();
    control.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&control);
    let mut moving = whole[..33].to_vec();
    moving.extend(8u32.to_be_bytes());
    moving.extend(&control);
    moving.extend(crc.sum().to_be_bytes());
    moving.extend(&whole[33..]);
    assert!(refused(&moving).contains("animation"), "{}", refused(&moving));
    let missing = picture::look(std::path::Path::new("/nowhere/a.png")).unwrap_err();
    assert!(missing.to_string().contains("no such file"));
}
