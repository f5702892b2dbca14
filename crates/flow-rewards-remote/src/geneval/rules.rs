//! GenEval's rules on detections.

use super::answer::Detection;
use super::settings::{GenEvalMode, GenEvalSettings};
use super::wanted::{Included, PLACES, Wanted};

/// The share of both objects' sizes that an offset must be above to count as a place.
const LEAST_OFFSET: f64 = 0.1;
/// The share of an offset that must lie in a direction.
const DIRECTION: f64 = 0.5;
/// Offsets below this are none, in pixels.
const NO_OFFSET: f64 = 1e-3;

/// The score of an image with `found`, the surest first.
pub(super) fn score(wanted: &Wanted, found: &[Detection], settings: &GenEvalSettings) -> f32 {
    let threshold = if wanted.is_counting() {
        settings.counting_threshold
    } else {
        settings.threshold
    };
    let of_class = |class: &str| -> Vec<&Detection> {
        let sure = found
            .iter()
            .filter(|object| object.class == class && object.score > threshold);
        sure.take(settings.max_objects).collect()
    };
    let judged = judge(wanted, of_class, settings.mode != GenEvalMode::Correct);
    match settings.mode {
        GenEvalMode::Score => judged.score,
        GenEvalMode::Strict => f32::from(u8::from(judged.is_right)),
        GenEvalMode::Correct => {
            let mut excluded = wanted.exclude.iter();
            let is_free = excluded.all(|object| of_class(&object.class).len() < object.count);
            f32::from(u8::from(judged.is_right && is_free))
        }
    }
}

struct Judged {
    /// Whether all that must be there is there.
    is_right: bool,
    /// The mean of the parts.
    score: f32,
}

/// Judges what is included: as many as wanted if `exactly`, else at least as many, of which the surest count.
fn judge<'f>(wanted: &Wanted, of_class: impl Fn(&str) -> Vec<&'f Detection>, exactly: bool) -> Judged {
    let mut is_right = true;
    let mut parts: Vec<f64> = Vec::new();
    let mut groups: Vec<Option<Vec<&Detection>>> = Vec::new();
    for object in &wanted.include {
        let mut found = of_class(&object.class);
        if !exactly {
            found.truncate(object.count);
        }
        parts.push(nearness(object.count, found.len()));
        let mut matches = found.len() == object.count;
        if !matches {
            if object.color.is_some() || object.position.is_some() {
                parts.push(0.0);
            }
        } else {
            matches = judge_color(object, &found, &mut parts);
            if let (true, Some((place, relative_to))) = (matches, &object.position) {
                let group = groups.get(*relative_to).and_then(Option::as_ref);
                matches = judge_place(place, &found, group.map(Vec::as_slice), &mut parts);
            }
        }
        is_right &= matches;
        groups.push(matches.then_some(found));
    }
    Judged {
        is_right,
        score: (parts.iter().sum::<f64>() / parts.len() as f64) as f32,
    }
}

/// 1 for as many as wanted, less the share that is missing or too many.
fn nearness(wanted: usize, found: usize) -> f64 {
    1.0 - wanted.abs_diff(found) as f64 / wanted as f64
}

fn judge_color(object: &Included, found: &[&Detection], parts: &mut Vec<f64>) -> bool {
    let Some(color) = &object.color else {
        return true;
    };
    let right = found
        .iter()
        .filter(|found| found.color.as_ref() == Some(color))
        .count();
    parts.push(nearness(object.count, right));
    right == object.count
}

/// Whether all of `found` have the place relative to all of `group`. As Flow-GRPO's server counts it, a place that is wrong adds a part
/// of 0 and one of 1, and one that is right a part of 1.
fn judge_place(
    place: &str,
    found: &[&Detection],
    group: Option<&[&Detection]>,
    parts: &mut Vec<f64>,
) -> bool {
    let Some(group) = group else {
        parts.push(0.0);
        return false;
    };
    let has_place = |a: &&Detection| group.iter().all(|b| places(a.place, b.place).contains(&place));
    let is_right = found.iter().all(has_place);
    if !is_right {
        parts.push(0.0);
    }
    parts.push(1.0);
    is_right
}

/// The places of the box `a` relative to `b`: the offset of the centres, less a tenth of both sizes, in the directions that have more than
/// half of the whole offset's length.
fn places(a: [f64; 4], b: [f64; 4]) -> Vec<&'static str> {
    let axis = |axis: usize| {
        let centre = |place: [f64; 4]| (place[axis] + place[axis + 2]) / 2.0;
        let size = |place: [f64; 4]| (place[axis + 2] - place[axis]).abs();
        let offset = centre(a) - centre(b);
        let reduced = (offset.abs() - LEAST_OFFSET * (size(a) + size(b))).max(0.0) * offset.signum();
        (offset, reduced)
    };
    let ((x, reduced_x), (y, reduced_y)) = (axis(0), axis(1));
    if reduced_x.abs() < NO_OFFSET && reduced_y.abs() < NO_OFFSET {
        return Vec::new();
    }
    let length = x.hypot(y);
    let shares = [-reduced_x, reduced_x, -reduced_y, reduced_y].map(|reduced| reduced / length);
    let places = PLACES.into_iter().zip(shares);
    places
        .filter(|(_, share)| *share > DIRECTION)
        .map(|(place, _)| place)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_data::Prompt;
    use serde_json::{Value, json};

    fn scores(metadata: Value, found: &[Detection]) -> [f32; 3] {
        let mut prompt = Prompt::free(0, "any".to_owned());
        prompt.metadata = metadata.as_object().expect("a table").clone();
        let wanted = Wanted::of(&prompt).expect("GenEval's");
        [GenEvalMode::Score, GenEvalMode::Correct, GenEvalMode::Strict].map(|mode| {
            let settings = GenEvalSettings {
                mode,
                ..GenEvalSettings::new(["http://localhost"])
            };
            score(&wanted, found, &settings)
        })
    }

    fn object(class: &str, score: f64, left: f64, top: f64, color: &str) -> Detection {
        Detection {
            class: class.to_owned(),
            score,
            place: [left, top, left + 10.0, top + 10.0],
            color: Some(color.to_owned()),
        }
    }

    fn dogs(count: usize, score: f64) -> Vec<Detection> {
        (0..count)
            .map(|place| object("dog", score, 20.0 * place as f64, 0.0, "red"))
            .collect()
    }

    #[test]
    fn counts_are_exact_or_at_least_as_many() {
        let two = json!({ "include": [{ "class": "dog", "count": 2 }] });
        for (found, wanted) in [
            (0, [0.0, 0.0, 0.0]),
            (1, [0.5, 0.0, 0.0]),
            (2, [1.0, 1.0, 1.0]),
            (3, [0.5, 1.0, 0.0]),
            (5, [-0.5, 1.0, 0.0]),
            // 16 count at most.
            (40, [-6.0, 1.0, 0.0]),
        ] {
            assert_eq!(scores(two.clone(), &dogs(found, 0.95)), wanted, "{found}");
        }
    }

    #[test]
    fn objects_must_be_surer_where_they_are_counted() {
        let of_tag = |tag: &str| json!({ "tag": tag, "include": [{ "class": "dog", "count": 1 }] });
        for (tag, score, wanted) in [
            ("single_object", 0.31, 1.0),
            ("single_object", 0.3, 0.0),
            ("counting", 0.89, 0.0),
            ("counting", 0.91, 1.0),
        ] {
            assert_eq!(
                scores(of_tag(tag), &dogs(1, score)),
                [wanted; 3],
                "{tag}, {score}"
            );
        }
    }

    #[test]
    fn what_is_excluded_counts_for_the_rules_of_the_benchmark_alone() {
        let one = json!({ "include": [{ "class": "dog", "count": 1 }], "exclude": [{ "class": "dog", "count": 2 }] });
        assert_eq!(scores(one.clone(), &dogs(1, 0.9)), [1.0, 1.0, 1.0]);
        assert_eq!(scores(one, &dogs(2, 0.9)), [0.0, 0.0, 0.0]);
        let cat = json!({ "include": [{ "class": "dog", "count": 1 }], "exclude": [{ "class": "cat", "count": 1 }] });
        let mut found = dogs(1, 0.9);
        found.push(object("cat", 0.9, 0.0, 50.0, "black"));
        assert_eq!(scores(cat, &found), [1.0, 0.0, 1.0]);
    }

    #[test]
    fn colours_count_for_as_many_as_have_them() {
        let red = json!({ "include": [{ "class": "dog", "count": 2, "color": "red" }] });
        let mut found = dogs(2, 0.9);
        assert_eq!(scores(red.clone(), &found), [1.0, 1.0, 1.0]);
        found[1].color = Some("blue".to_owned());
        // (1 + 0.5) / 2.
        assert_eq!(scores(red.clone(), &found), [0.75, 0.0, 0.0]);
        // One is missing, so that the colour is not looked at: (0.5 + 0) / 2.
        assert_eq!(scores(red.clone(), &found[..1]), [0.25, 0.0, 0.0]);
        // The surest two are red, and the third is one too many: (0.5 + 0) / 2.
        let mut three = dogs(2, 0.9);
        three.push(object("dog", 0.5, 60.0, 0.0, "blue"));
        assert_eq!(scores(red, &three), [0.25, 1.0, 0.0]);
    }

    #[test]
    fn places_are_relative_to_an_earlier_object() {
        let left = json!({ "include": [
            { "class": "cat", "count": 1 },
            { "class": "dog", "count": 1, "position": ["left of", 0] },
        ] });
        let with_dog = |x: f64, y: f64| {
            [
                object("cat", 0.9, 50.0, 50.0, "black"),
                object("dog", 0.9, x, y, "red"),
            ]
        };
        assert_eq!(scores(left.clone(), &with_dog(0.0, 50.0)), [1.0, 1.0, 1.0]);
        // On the other side: the parts are 1, 1, 0 and 1.
        assert_eq!(scores(left.clone(), &with_dog(99.0, 50.0)), [0.75, 0.0, 0.0]);
        // Without the cat: 0, 1 and 0.
        assert_eq!(scores(left, &with_dog(0.0, 50.0)[1..]), [1.0 / 3.0, 0.0, 0.0]);
    }

    #[test]
    fn a_place_is_an_offset_beyond_a_tenth_of_both_sizes_in_its_direction() {
        let at = |x: f64, y: f64| places([x, y, x + 10.0, y + 10.0], [0.0, 0.0, 10.0, 10.0]);
        assert_eq!(at(-20.0, 0.0), ["left of"]);
        assert_eq!(at(20.0, 0.0), ["right of"]);
        assert_eq!(at(0.0, -20.0), ["above"]);
        assert_eq!(at(0.0, 20.0), ["below"]);
        // Less than 0.1 (10 + 10), and none at all.
        assert!(at(1.9, 0.0).is_empty() && at(0.0, 0.0).is_empty());
        // (20 - 2) / √(20² + 20²) = 0.64 in both directions.
        assert_eq!(at(20.0, 20.0), ["right of", "below"]);
        // (3 - 2) / 3 of the offset.
        assert!(at(3.0, 0.0).is_empty());
        assert_eq!(at(5.0, 0.0), ["right of"]);
    }
}
