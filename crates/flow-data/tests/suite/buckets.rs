//! Aspect-ratio buckets, and the sizes of pictures by which they are chosen.

use flow_data::{BucketSettings, BucketSize, Buckets, Dataset, Images, ImagesSettings, Picture, picture};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageFormat, Rgb, RgbImage};
use std::path::Path;

const fn size(width: usize, height: usize) -> BucketSize {
    BucketSize { width, height }
}

fn sizes(settings: &BucketSettings, base: BucketSize) -> Vec<(usize, usize)> {
    let buckets = Buckets::of(settings, base).unwrap();
    let sizes = buckets.sizes().iter().map(|size| (size.width, size.height));
    sizes.collect()
}

fn listed(sizes: &[[usize; 2]]) -> BucketSettings {
    BucketSettings {
        sizes: Some(sizes.to_vec()),
        ..BucketSettings::default()
    }
}

#[test]
fn sizes_are_those_of_kohyas_trainers_for_512_by_512() {
    // What `make_bucket_resolutions((512, 512), 256, 1024, 64)` of kohya-ss/sd-scripts gives.
    let narrow = [
        (256, 832),
        (256, 896),
        (256, 960),
        (256, 1024),
        (320, 704),
        (320, 768),
        (384, 640),
        (448, 576),
    ];
    let mut wanted: Vec<(usize, usize)> = narrow.to_vec();
    wanted.push((512, 512));
    wanted.extend(narrow.map(|(width, height)| (height, width)));
    wanted.sort_unstable();
    assert_eq!(sizes(&BucketSettings::default(), size(512, 512)), wanted);
}

#[test]
fn sizes_have_no_more_pixels_than_the_base_which_is_one_of_them() {
    for (base, step) in [
        ((1328, 1328), 64),
        ((832, 480), 16),
        ((48, 64), 16),
        ((1000, 400), 8),
    ] {
        let settings = BucketSettings {
            step,
            ..BucketSettings::default()
        };
        let found = sizes(&settings, size(base.0, base.1));
        assert!(found.contains(&base), "{base:?}: {found:?}");
        for (width, height) in found.into_iter().filter(|size| *size != base) {
            assert!(width % step == 0 && height % step == 0, "{width} x {height}");
            assert!(width * height <= base.0 * base.1, "{width} x {height}");
            assert_ne!(
                width * base.1,
                height * base.0,
                "the base stands for its proportions"
            );
            // One of the sides is the longest that fits the other.
            let is_full = |width: usize, height: usize| width * (height + step) > base.0 * base.1;
            assert!(
                is_full(width, height) || is_full(height, width),
                "{width} x {height}"
            );
        }
    }
    let limited = BucketSettings {
        min_side: Some(384),
        max_side: Some(640),
        ..BucketSettings::default()
    };
    let wanted = [(384, 640), (448, 576), (512, 512), (576, 448), (640, 384)];
    assert_eq!(sizes(&limited, size(512, 512)), wanted);
}

#[test]
fn a_picture_goes_to_the_nearest_proportions_and_of_equal_ones_is_not_enlarged() {
    let buckets = Buckets::of(&BucketSettings::default(), size(512, 512)).unwrap();
    let nearest = |width, height| {
        let size = buckets.sizes()[buckets.nearest(size(width, height))];
        (size.width, size.height)
    };
    assert_eq!(nearest(4000, 3000), (576, 448));
    assert_eq!(nearest(3000, 4000), (448, 576));
    assert_eq!(nearest(1, 1), (512, 512));
    assert_eq!(nearest(10_000, 10), (1024, 256));
    // By the logarithm of the ratio, in f64: no other bucket is nearer.
    for (width, height) in [
        (1920, 1080),
        (700, 500),
        (333, 999),
        (641, 640),
        (2, 3),
        (1600, 999),
    ] {
        let ratio = |width: usize, height: usize| (width as f64 / height as f64).ln();
        let distance = |(w, h)| (ratio(w, h) - ratio(width, height)).abs();
        let found = distance(nearest(width, height));
        let best = buckets
            .sizes()
            .iter()
            .map(|size| distance((size.width, size.height)));
        assert!(
            found <= best.fold(f64::INFINITY, f64::min) + 1e-12,
            "{width} x {height}"
        );
    }
    // Several sizes of the same proportions.
    let buckets = Buckets::of(&listed(&[[1024, 1024], [512, 512], [768, 768]]), size(512, 512)).unwrap();
    let nearest = |width, height| buckets.sizes()[buckets.nearest(size(width, height))].width;
    assert_eq!(nearest(2000, 2000), 1024);
    assert_eq!(nearest(800, 900), 768);
    assert_eq!(nearest(100, 100), 512);
}

#[test]
fn settings_that_leave_no_size_are_refused_with_what_to_do() {
    let refused = |settings: &BucketSettings| Buckets::of(settings, size(512, 512)).unwrap_err().to_string();
    let contains = |problem: String, wanted: &str| assert!(problem.contains(wanted), "{problem}");
    contains(refused(&listed(&[])), "[[1024, 1024], [832, 1216]]");
    contains(refused(&listed(&[[64, 64], [64, 64]])), "[64, 64] twice");
    contains(refused(&listed(&[[64, 0]])), "sides are 1 to 16384");
    let limits = BucketSettings {
        min_side: Some(650),
        max_side: Some(690),
        ..BucketSettings::default()
    };
    contains(refused(&limits), "no multiple of `step` = 64 lies between");
}

fn encoded(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
    let pixels = RgbImage::from_fn(width, height, |x, y| Rgb([(x * 7) as u8, (y * 5) as u8, 90]));
    let mut bytes = Vec::new();
    match format {
        ImageFormat::Jpeg => JpegEncoder::new(&mut bytes).encode_image(&pixels).unwrap(),
        ImageFormat::WebP => WebPEncoder::new_lossless(&mut bytes)
            .encode(&pixels, width, height, ExtendedColorType::Rgb8)
            .unwrap(),
        _ => pixels
            .write_to(&mut std::io::Cursor::new(&mut bytes), ImageFormat::Png)
            .unwrap(),
    }
    bytes
}

/// Puts an EXIF block with an orientation, and `padding` bytes of comments, behind the beginning of a JPEG.
fn turned(jpeg: &[u8], orientation: u16, padding: usize) -> Vec<u8> {
    let mut bytes = jpeg[..2].to_vec();
    let mut left = padding;
    while left > 0 {
        let length = left.min(65_000);
        bytes.extend([0xff, 0xfe]);
        bytes.extend((length as u16 + 2).to_be_bytes());
        bytes.extend(std::iter::repeat_n(b'-', length));
        left -= length;
    }
    // TIFF, little-endian: one entry, tag 0x0112, a short.
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend(orientation.to_le_bytes());
    exif.extend([0; 6]);
    bytes.extend([0xff, 0xe1]);
    bytes.extend((exif.len() as u16 + 2).to_be_bytes());
    bytes.extend(exif);
    bytes.extend(&jpeg[2..]);
    bytes
}

#[test]
fn the_size_of_a_file_is_that_of_the_picture_that_is_decoded_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let jpeg = encoded(30, 20, ImageFormat::Jpeg);
    let mut files = vec![
        (encoded(31, 17, ImageFormat::Png), (31, 17)),
        (encoded(12, 40, ImageFormat::WebP), (12, 40)),
        (jpeg.clone(), (30, 20)),
        // Longer metadata than are looked at first.
        (turned(&jpeg, 6, 1_500_000), (20, 30)),
    ];
    for orientation in 1..=8 {
        let size = if orientation < 5 { (30, 20) } else { (20, 30) };
        files.push((turned(&jpeg, orientation, 0), size));
    }
    for (number, (bytes, wanted)) in files.into_iter().enumerate() {
        // Names that say another format: the contents decide.
        let path = folder.path().join(format!("{number}.png"));
        std::fs::write(&path, &bytes).unwrap();
        let decoded = Picture::decode(&bytes).unwrap();
        assert_eq!((decoded.width(), decoded.height()), wanted, "file {number}");
        assert_eq!(picture::size_of(&path).unwrap(), wanted, "file {number}");
    }
    let none = picture::size_of(&folder.path().join("none.png")).unwrap_err();
    assert!(none.to_string().contains("no such file"), "{none}");
    std::fs::write(folder.path().join("cut.jpg"), &jpeg[..100]).unwrap();
    let cut = picture::size_of(&folder.path().join("cut.jpg")).unwrap_err();
    assert!(cut.to_string().contains("damaged or cut off"), "{cut}");
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn a_data_set_of_pictures_gives_their_sizes_and_what_is_wanted_of_buckets() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, width, height) in [("a", 30, 20), ("b", 7, 70)] {
        write(
            at,
            &format!("{name}.png"),
            &encoded(width, height, ImageFormat::Png),
        );
        write(at, &format!("{name}.txt"), format!("picture {name}").as_bytes());
    }
    let settings = ImagesSettings {
        buckets: Some(BucketSettings {
            step: 32,
            ..BucketSettings::default()
        }),
        ..ImagesSettings::new(at)
    };
    let data = Images::read(&settings).unwrap();
    let pictures = data.captioned_pictures().unwrap();
    assert_eq!(
        (pictures.size(0).unwrap(), pictures.size(1).unwrap()),
        ((30, 20), (7, 70))
    );
    assert_eq!(pictures.buckets(), settings.buckets.as_ref());
    // A picture that is gone since is named.
    std::fs::remove_file(at.join("b.png")).unwrap();
    let gone = pictures.size(1).unwrap_err().to_string();
    assert!(gone.contains("b.png") && gone.contains("no such file"), "{gone}");
}
