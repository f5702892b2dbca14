//! Image grids and curves.

use flow_report::*;
use proptest::prelude::*;

const BACKGROUND: [u8; 3] = [0xF7, 0xF7, 0xF5];

fn grey(height: usize, width: usize, value: f32) -> Tile {
    Tile::new(1, height, width, vec![value; height * width]).unwrap()
}

/// The pixels of one colour: how many, and the corners of the smallest rectangle around them.
fn extent(picture: &image::RgbImage, colour: [u8; 3]) -> (usize, [u32; 4]) {
    let mut count = 0;
    let mut corners = [u32::MAX, u32::MAX, 0, 0];
    for (x, y, pixel) in picture
        .enumerate_pixels()
        .filter(|(_, _, pixel)| pixel.0 == colour)
    {
        count += 1;
        corners = [
            corners[0].min(x),
            corners[1].min(y),
            corners[2].max(x),
            corners[3].max(y),
        ];
        let _ = pixel;
    }
    (count, corners)
}

#[test]
fn every_pixel_becomes_a_square_of_the_scale_with_its_colour() {
    // 2×3 RGB with six different colours, planes first.
    let pixels_chw: Vec<f32> = (0..18).map(|i| i as f32 / 17.0 * 2.0 - 1.0).collect();
    let mut grid = ImageGrid::new().scale(5);
    grid.row("", vec![Tile::new(3, 2, 3, pixels_chw.clone()).unwrap()]);
    let picture = grid.render().unwrap();
    for at in 0..6 {
        let colour = [at, at + 6, at + 12].map(|i| ((pixels_chw[i] as f64 + 1.0) * 127.5).round() as u8);
        let (count, [left, top, right, bottom]) = extent(&picture, colour);
        assert_eq!(
            (count, right - left + 1, bottom - top + 1),
            (25, 5, 5),
            "{colour:?}"
        );
        let first = extent(
            &picture,
            [0, 6, 12].map(|i| ((pixels_chw[i] as f64 + 1.0) * 127.5).round() as u8),
        )
        .1;
        assert_eq!(
            (left - first[0], top - first[1]),
            (at as u32 % 3 * 5, at as u32 / 3 * 5)
        );
    }
}

#[test]
fn values_outside_are_clamped_and_values_that_are_not_finite_are_magenta() {
    let tile = Tile::new(1, 1, 4, vec![-9.0, 9.0, f32::NAN, f32::NEG_INFINITY]).unwrap();
    assert_eq!(tile.not_finite(), 2);
    let mut grid = ImageGrid::new().scale(1);
    grid.row("", vec![tile]);
    let picture = grid.render().unwrap();
    let counts = [[0, 0, 0], [255, 255, 255], [255, 0, 255]].map(|colour| extent(&picture, colour).0);
    assert_eq!(counts, [1, 1, 2]);
}

#[test]
fn before_and_after_stand_side_by_side_in_the_row_of_their_prompt() {
    let prompts = [
        "a".to_owned(),
        "a longer prompt that is wrapped because it is wide".to_owned(),
    ];
    let side = |values: [f32; 2]| {
        values
            .map(|value| vec![grey(6, 5, value), grey(6, 5, value)])
            .to_vec()
    };
    let grid = ImageGrid::before_after(["b", "a"], &prompts, side([-0.9, -0.8]), side([0.5, 0.6]))
        .unwrap()
        .scale(4);
    let picture = grid.render().unwrap();
    let shade = |value: f32| [((value + 1.0) * 127.5).round() as u8; 3];
    let [first, second, third, fourth] = [-0.9, -0.8, 0.5, 0.6].map(|value| {
        let (count, corners) = extent(&picture, shade(value));
        assert_eq!(count, 2 * 5 * 6 * 16, "two whole tiles of {value}");
        corners
    });
    assert!(first[1] == third[1] && second[1] == fourth[1] && first[3] < second[1]);
    assert!(first[2] < third[0] && first[0] == second[0] && third[0] == fourth[0]);
    assert!(ImageGrid::before_after(["b", "a"], &prompts, vec![], side([0.0, 0.0])).is_err());
}

#[test]
fn text_stays_inside_the_picture_and_every_character_can_be_drawn() {
    let ascii: String = (' '..='~').collect();
    let mut grid = ImageGrid::new().title(&ascii).headers([ascii.as_str()]);
    let words = format!("{ascii} größe 日本 {}", "x".repeat(300));
    grid.row(
        &words,
        vec![
            grey(3, 3, 1.0).label("0.123456789012345678"),
            grey(8, 8, 1.0).label(&words),
        ],
    );
    let picture = grid.render().unwrap();
    let border = picture
        .enumerate_pixels()
        .filter(|(x, y, _)| *x == 0 || *y == 0 || *x == picture.width() - 1 || *y == picture.height() - 1);
    assert!(border.into_iter().all(|(_, _, pixel)| pixel.0 == BACKGROUND));
}

#[test]
fn tiles_that_cannot_be_drawn_are_refused_with_the_reason() {
    for (channels, height, width, length, part) in [
        (2, 4, 4, 32, "2 channels"),
        (3, 0, 4, 0, "sides must be"),
        (1, 4, 4, 15, "needs 16 values, got 15"),
        (1, 1 << 40, 1, 0, "sides must be"),
    ] {
        let text = Tile::new(channels, height, width, vec![0.0; length])
            .unwrap_err()
            .to_string();
        assert!(text.contains(part), "{text}");
    }
    assert!(
        ImageGrid::new()
            .render()
            .unwrap_err()
            .to_string()
            .contains("no tiles")
    );
    let mut grid = ImageGrid::new().scale(1000);
    grid.row("", vec![grey(1, 64, 0.0)]);
    assert!(
        grid.picture()
            .unwrap_err()
            .to_string()
            .contains("use a smaller scale")
    );
}

#[test]
fn the_same_grid_and_the_same_chart_give_the_same_bytes() {
    let make = || {
        let mut grid = ImageGrid::new().title("t");
        grid.row("p", vec![grey(9, 7, 0.1).label("1")]);
        let series =
            Series::new("s", vec![(0.0, 1.0), (1.0, 3.0)]).band(vec![(0.0, 0.5, 1.5), (1.0, 2.0, 4.0)]);
        (
            grid.picture().unwrap(),
            LineChart::new("t", "x", "y").with(series).svg(),
        )
    };
    assert_eq!(make(), make());
}

fn chart(points: Vec<(f64, f64)>) -> String {
    LineChart::new("t", "x", "y").with(Series::new("s", points)).svg()
}

/// The points of the chart's first line, in the picture's coordinates.
fn first_line(svg: &str) -> Vec<(f64, f64)> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let plot = |node: &roxmltree::Node| {
        node.attribute("class")
            .is_some_and(|class| class.starts_with("line"))
            && node.attribute("d").is_some_and(|d| d.contains('L'))
    };
    let node = document.descendants().find(plot).unwrap();
    let number = |text: &str| text.parse::<f64>().unwrap();
    let point = |text: &str| text.split_once(' ').map(|(x, y)| (number(x), number(y))).unwrap();
    node.attribute("d")
        .unwrap()
        .trim_start_matches('M')
        .split('L')
        .map(point)
        .collect()
}

#[test]
fn a_line_goes_where_its_values_say() {
    let line = first_line(&chart(vec![(0.0, 0.0), (5.0, 10.0), (10.0, 5.0)]));
    assert!(
        (line[1].0 - 0.5 * (line[0].0 + line[2].0)).abs() < 0.11,
        "{line:?}"
    );
    assert!(
        (line[2].1 - 0.5 * (line[0].1 + line[1].1)).abs() < 0.11 && line[1].1 < line[0].1,
        "{line:?}"
    );
}

#[test]
fn values_that_are_not_finite_interrupt_the_line_and_are_counted() {
    let svg = chart(vec![
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, f64::NAN),
        (3.0, 1.0),
        (4.0, f64::INFINITY),
        (5.0, 2.0),
        (6.0, 2.0),
    ]);
    assert!(svg.contains("2 values are NaN or infinite, not drawn"));
    assert_eq!(
        svg.matches("class=\"line c0\"").count(),
        1 + 2,
        "legend and two stretches: {svg}"
    );
    for path in svg.split(" d=\"").skip(1) {
        let numbers = path.split('"').next().unwrap();
        assert!(!numbers.contains("NaN") && !numbers.contains("inf"), "{numbers}");
    }
    assert!(chart(vec![(0.0, f64::NAN)]).contains("no finite values yet"));
    assert!(chart(vec![]).contains("no finite values yet"));
    // Half of this more would not be a number any more.
    assert!(!chart(vec![(0.0, -1.5e308)]).contains("NaN"));
}

#[test]
fn a_long_series_is_thinned_without_losing_its_peak() {
    let peak = 77_777;
    let points = (0..100_000).map(|i| (f64::from(i), if i == peak { 50.0 } else { f64::from(i % 7) }));
    let svg = chart(points.collect());
    assert!(svg.len() < 40_000, "{}", svg.len());
    let line = first_line(&svg);
    let (x, _) = line.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let (first, last) = (line[0].0, line[line.len() - 1].0);
    assert!(((x - first) / (last - first) - f64::from(peak) / 1e5).abs() < 0.002);
}

#[test]
fn a_round_x_axis_has_ticks_at_both_ends_around_all_points() {
    let points = vec![(1.04, 3.0), (4.22, 1.0), (2.5, 2.0)];
    let svg = LineChart::new("t", "x", "y")
        .round_x()
        .with(Series::new("s", points))
        .svg();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let ticks: Vec<(f64, f64)> = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("tick middle"))
        .map(|node| {
            let x = node.attribute("x").unwrap().parse().unwrap();
            (x, node.text().unwrap().parse().unwrap())
        })
        .collect();
    assert_eq!((ticks[0].1, ticks[ticks.len() - 1].1), (1.0, 4.5));
    // Points keep the order they were given in, and stand where their values are between the ends.
    let line = first_line(&svg);
    let place = |value: f64| {
        let ((left, _), (right, _)) = (ticks[0], ticks[ticks.len() - 1]);
        left + (value - 1.0) / 3.5 * (right - left)
    };
    for ((x, _), value) in line.iter().zip([1.04, 4.22, 2.5]) {
        assert!((x - place(value)).abs() < 0.2, "{x} for {value}");
    }
}

#[test]
fn texts_of_a_chart_are_escaped() {
    let svg = LineChart::new("a <b> & \"c\"", "<x>", "y's")
        .with(Series::new("<s>", vec![(0.0, 1.0)]))
        .svg();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document
        .descendants()
        .filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", "text")))
        .filter_map(|n| n.text())
        .collect();
    for text in ["a <b> & \"c\"", "<x>", "y's", "<s>"] {
        assert!(texts.contains(&text), "{text} in {texts:?}");
    }
}

#[test]
fn ticks_are_round_and_their_labels_short() {
    let texts = |low, high| {
        let (ticks, step) = nice_ticks(low, high, 5);
        labels(&ticks, step).join(" ")
    };
    assert_eq!(texts(0.0, 200.0), "0 50 100 150 200");
    assert_eq!(texts(0.42, 0.87), "0.4 0.5 0.6 0.7 0.8 0.9");
    assert_eq!(texts(-1.0, 1.0), "-1.0 -0.5 0 0.5 1.0");
    assert_eq!(texts(0.0, 250_000.0), "0 50k 100k 150k 200k 250k");
    assert_eq!(texts(0.0, 3e-5), "0 1e-5 2e-5 3e-5");
    assert_eq!(texts(0.998, 1.0), "0.9980 0.9985 0.9990 0.9995 1.0000");
    assert_eq!(texts(0.0, 1e13), "0 2e12 4e12 6e12 8e12 1e13");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_values_give_a_well_formed_chart_inside_its_frame(
        points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..50),
        name in "\\PC{0,20}",
        reference in any::<f64>(),
        round_x in any::<bool>(),
    ) {
        let chart = LineChart::new(&name, &name, &name);
        let chart = if round_x { chart.round_x() } else { chart };
        let svg = chart
            .with(Series::new(name.clone(), points.clone()).band(points.iter().map(|(x, y)| (*x, *y, y + 1.0)).collect()))
            .reference(reference, "r")
            .svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        for circle in document.descendants().filter(|node| node.attribute("cx").is_some()) {
            let at = |name| circle.attribute(name).unwrap().parse::<f64>().unwrap();
            prop_assert!((0.0..=420.0).contains(&at("cx")) && (0.0..=600.0).contains(&at("cy")));
        }
    }

    #[test]
    fn ticks_enclose_the_values_evenly(low in -1e9..1e9_f64, span in 1e-6..1e9_f64) {
        let high = low + span;
        let (ticks, step) = nice_ticks(low, high, 5);
        let slack = 1e-6 * step;
        prop_assert!(ticks[0] <= low + slack && ticks[ticks.len() - 1] >= high - slack);
        prop_assert!((2..=12).contains(&ticks.len()), "{:?}", ticks);
        for pair in ticks.windows(2) {
            prop_assert!((pair[1] - pair[0] - step).abs() <= 1e-6 * step + 1e-9 * low.abs());
        }
        prop_assert_eq!(labels(&ticks, step).len(), ticks.len());
    }
}

/// The texts at the ticks of the y axis.
fn y_ticks(chart: &LineChart) -> Vec<f64> {
    let svg = chart.svg();
    let texts = svg.split("class=\"tick end\"").skip(1);
    texts
        .map(|rest| {
            rest.split_once('>')
                .unwrap()
                .1
                .split_once('<')
                .unwrap()
                .0
                .parse()
                .unwrap()
        })
        .collect()
}

#[test]
fn an_axis_of_probabilities_does_not_leave_0_to_1_unless_a_value_does() {
    let chart = |y: f64, high: f64| {
        let series =
            Series::new("p", vec![(0.0, 0.3), (10.0, y)]).band(vec![(0.0, 0.2, 0.4), (10.0, 0.9, high)]);
        LineChart::new("t", "x", "y")
            .with(series)
            .y_within(ValueRange::new(0.0, 1.0))
    };
    assert!(
        y_ticks(&chart(0.97, 1.0))
            .iter()
            .all(|tick| (0.0..=1.0).contains(tick))
    );
    assert!(y_ticks(&chart(0.97, 1.1)).iter().any(|tick| *tick > 1.0));
    // One value gets room on both sides, but only where there can be values.
    for value in [0.0, 1.0] {
        let series = Series::new("", vec![(0.0, value), (1.0, value)]);
        let chart = LineChart::new("t", "x", "y")
            .with(series)
            .y_within(ValueRange::new(0.0, 1.0));
        let ticks = y_ticks(&chart);
        assert!(
            ticks.len() > 1 && ticks.iter().all(|tick| (0.0..=1.0).contains(tick)),
            "{ticks:?}"
        );
    }
}

#[test]
fn each_tile_of_a_grid_is_a_picture_of_its_own_without_captions() {
    let mut grid = ImageGrid::new().title("t").scale(9);
    grid.row("a", vec![grey(2, 3, -1.0).label("0.5"), grey(2, 3, 1.0)]);
    grid.row("b", vec![grey(4, 4, 0.0)]);
    let each = grid.each(5).unwrap();
    let places: Vec<(usize, usize)> = each.iter().map(|(row, column, _)| (*row, *column)).collect();
    assert_eq!(places, [(1, 1), (1, 2), (2, 1)]);
    let picture = &each[1].2;
    let decoded = image::load_from_memory(&picture.png).unwrap().to_rgb8();
    assert_eq!((decoded.width(), decoded.height()), (15, 10));
    assert_eq!((picture.width, picture.height), (15, 10));
    assert!(decoded.pixels().all(|pixel| pixel.0 == [255; 3]));
    assert!(grid.each(10_000).is_err());
}
