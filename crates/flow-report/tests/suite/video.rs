//! Videos, read again by the decoders of their formats.

use flow_report::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// Frames of which no two have the same pixels, with no more than 256 colours each.
fn pixels(frames: usize, height: usize, width: usize) -> Vec<u8> {
    let mut pixels = Vec::new();
    for frame in 0..frames {
        for y in 0..height {
            for x in 0..width {
                let shade = ((7 * x + 3 * y) % 200) as u8;
                pixels.extend([shade, 255 - shade, (frame * 31 % 256) as u8]);
            }
        }
    }
    pixels
}

fn video(frames: usize, height: usize, width: usize, rate_hz: f64) -> Video {
    Video::new(frames, height, width, pixels(frames, height, width), rate_hz).unwrap()
}

/// The frames of an animated PNG, one after another, and the seconds of each.
fn read_png(bytes: &[u8]) -> (Vec<u8>, Vec<f64>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let control = *reader.info().animation_control().unwrap();
    assert_eq!(control.num_plays, 0, "it is repeated without end");
    let size = reader.output_buffer_size().unwrap();
    let (mut pixels, mut times_s) = (Vec::new(), Vec::new());
    for _ in 0..control.num_frames {
        let mut frame = vec![0; size];
        let info = reader.next_frame(&mut frame).unwrap();
        assert_eq!((info.color_type, info.buffer_size()), (png::ColorType::Rgb, size));
        let control = reader.info().frame_control().unwrap();
        times_s.push(f64::from(control.delay_num) / f64::from(control.delay_den));
        pixels.extend(frame);
    }
    (pixels, times_s)
}

/// The frames of a GIF, one after another, and the hundredths of a second of each.
fn read_gif(bytes: &[u8]) -> (Vec<u8>, Vec<u16>) {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let mut decoder = options.read_info(bytes).unwrap();
    let (mut pixels, mut times) = (Vec::new(), Vec::new());
    while let Some(frame) = decoder.read_next_frame().unwrap() {
        times.push(frame.delay);
        for pixel in frame.buffer.chunks_exact(4) {
            assert_eq!(pixel[3], 255, "no pixel is transparent");
            pixels.extend(&pixel[..3]);
        }
    }
    assert_eq!(decoder.repeat(), gif::Repeat::Infinite);
    (pixels, times)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_animated_png_has_every_pixel_of_every_frame(
        (frames, height, width) in (1_usize..5, 1_usize..9, 1_usize..9),
        seed in any::<u64>(),
    ) {
        let length = frames * height * width * 3;
        let pixels: Vec<u8> = (0..length as u64)
            .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8)
            .collect();
        let video = Video::new(frames, height, width, pixels.clone(), 16.0).unwrap();
        let (found, times_s) = read_png(&video.encoded(Animation::Png).unwrap());
        prop_assert_eq!(found, pixels);
        prop_assert_eq!(times_s, vec![0.0625; frames]);
    }
}

#[test]
fn a_gif_of_few_colours_has_every_pixel_of_every_frame() {
    let video = video(5, 13, 17, 10.0);
    let (found, times) = read_gif(&video.encoded(Animation::Gif).unwrap());
    assert_eq!(found, pixels(5, 13, 17));
    assert_eq!(times, [10; 5]);
}

#[test]
fn a_gif_of_many_colours_is_near_in_every_pixel() {
    // A plane of colours: 64 × 64, all different.
    let smooth: Vec<u8> = (0..64 * 64)
        .flat_map(|at| [(at % 64 * 4) as u8, (at / 64 * 4) as u8, 128])
        .collect();
    let video = Video::new(1, 64, 64, smooth.clone(), 10.0).unwrap();
    let (found, _) = read_gif(&video.encoded(Animation::Gif).unwrap());
    assert_eq!(found.len(), smooth.len());
    let errors = found.iter().zip(&smooth).map(|(a, b)| f64::from(a.abs_diff(*b)));
    // 256 colours over the plane are squares of 4 × 4 values of 4 each: on average at most 4 away in two of three channels.
    let mean = errors.sum::<f64>() / smooth.len() as f64;
    assert!(mean > 0.0 && mean < 8.0, "{mean}");
}

#[test]
fn a_gif_is_as_long_as_its_video_though_its_ticks_do_not_fit() {
    for (rate_hz, frames) in [(16.0, 81), (24.0, 49), (50.0, 7), (0.1, 2), (29.97, 31)] {
        let (_, times) = read_gif(&video(frames, 2, 3, rate_hz).encoded(Animation::Gif).unwrap());
        let total_s = times.iter().map(|time| f64::from(*time)).sum::<f64>() / 100.0;
        assert!(
            (total_s - frames as f64 / rate_hz).abs() <= 0.005 + 1e-9,
            "{rate_hz}: {total_s}"
        );
        assert!(
            times.iter().all(|time| *time >= 2),
            "{rate_hz}: browsers slow down below 2"
        );
    }
}

#[test]
fn an_animated_png_has_the_rate_of_its_video() {
    for rate_hz in [0.1, 1.0, 16.0, 23.98, 50.0] {
        let (_, times_s) = read_png(&video(3, 2, 2, rate_hz).encoded(Animation::Png).unwrap());
        let found: f64 = times_s.iter().sum();
        assert!((found - 3.0 / rate_hz).abs() < 1e-9, "{rate_hz}: {found}");
    }
}

#[test]
fn a_file_is_written_whole_in_the_format_of_its_ending() {
    let folder = tempfile::tempdir().unwrap();
    let video = video(2, 3, 5, 8.0);
    for (name, animation) in [
        ("a.png", Animation::Png),
        ("b.APNG", Animation::Png),
        ("c.gif", Animation::Gif),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, "an older file").unwrap();
        video.write(&path).unwrap();
        assert_eq!(
            fs::read(&path).unwrap(),
            video.encoded(animation).unwrap(),
            "{name}"
        );
    }
    for name in ["d.mp4", "e"] {
        let text = video.write(&folder.path().join(name)).unwrap_err().to_string();
        assert!(text.contains("`.gif`") && text.contains(name), "{text}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        3,
        "nothing else is left"
    );
    let text = video
        .write(Path::new("no such folder/a.gif"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("no such folder"), "{text}");
}

#[test]
fn a_strip_has_evenly_spaced_frames_with_their_times() {
    let video = video(9, 4, 6, 8.0);
    let blue = |tile: &Tile| {
        let picture = tile.picture(1).unwrap();
        image::load_from_memory(&picture.png)
            .unwrap()
            .into_rgb8()
            .get_pixel(5, 3)
            .0[2]
    };
    // Of frame f, blue is 31 f.
    for (count, frames) in [
        (1, vec![0]),
        (2, vec![0, 8]),
        (3, vec![0, 4, 8]),
        (4, vec![0, 3, 5, 8]),
        (20, (0..9).collect()),
    ] {
        let strip = video.strip(count).unwrap();
        let found: Vec<u8> = strip.iter().map(blue).collect();
        let expected: Vec<u8> = frames.iter().map(|frame| (31 * frame % 256) as u8).collect();
        assert_eq!(found, expected, "{count}");
    }
    assert!(video.strip(0).is_err());
    let labelled = format!("{:?}", video.strip(3).unwrap());
    for time in ["\"0.00 s\"", "\"0.50 s\"", "\"1.00 s\""] {
        assert!(labelled.contains(time), "{time}");
    }
}

#[test]
fn a_strip_in_a_grid_has_the_pixels_of_its_frames_to_the_bit() {
    let video = video(3, 16, 16, 8.0);
    let mut grid = ImageGrid::new().scale(1);
    grid.row("a prompt", video.strip(3).unwrap());
    let picture = grid.render().unwrap();
    for frame in pixels(3, 16, 16).chunks_exact(16 * 16 * 3) {
        let row: Vec<&[u8]> = frame[..16 * 3].chunks_exact(3).collect();
        let at = |x: u32, y: u32| -> Option<[u8; 3]> { picture.get_pixel_checked(x, y).map(|pixel| pixel.0) };
        let is_there = |x: u32, y: u32| {
            (0..16).all(|step| at(x + step, y).as_ref().map(|it| &it[..]) == Some(row[step as usize]))
        };
        let found = (0..picture.height()).any(|y| (0..picture.width()).any(|x| is_there(x, y)));
        assert!(found, "the first line of a frame is in the picture");
    }
}

#[test]
fn a_video_that_cannot_be_shown_is_refused_with_the_reason() {
    for (shape, length, rate_hz, part) in [
        ([0, 2, 2], 0, 8.0, "at least one frame"),
        ([1, 0, 2], 0, 8.0, "sides must be"),
        ([1, 2, 1 << 16], 3 << 17, 8.0, "sides must be"),
        ([2, 2, 2], 23, 8.0, "needs 24 bytes, got 23"),
        ([u32::MAX as usize, 1 << 15, 1 << 15], 0, 8.0, "bytes, got 0"),
        ([1, 1, 1], 3, 0.0, "0.1 to 50"),
        ([1, 1, 1], 3, 50.5, "0.1 to 50"),
        ([1, 1, 1], 3, f64::NAN, "0.1 to 50"),
    ] {
        let [frames, height, width] = shape;
        let error = Video::new(frames, height, width, vec![0; length], rate_hz).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part) && text.starts_with("video "), "{text}");
    }
}
