//! What a detector's answer says.

use serde::Deserialize;
use serde_json::Value;

use super::wanted::Wanted;
use crate::http::{Failure, json};
use crate::score::excerpt;

/// An object that was found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Detection {
    pub class: String,
    /// How sure it is, 0 to 1.
    pub score: f64,
    /// Left, top, right and bottom, in pixels.
    #[serde(rename = "box")]
    pub place: [f64; 4],
    #[serde(default)]
    pub color: Option<String>,
}

/// The objects of one image, the surest first.
pub(super) type Found = Vec<Detection>;

/// The objects of each image of a request for `wanted`.
pub(super) fn detections(status: u16, body: &[u8], wanted: &[Wanted]) -> Result<Vec<Found>, Failure> {
    const PATH: &str = "/detect";
    let answer = json(PATH, status, body)?;
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        return Err(Failure::lasting(format!(
            "answered {PATH} with the error {}",
            excerpt(&error.to_string())
        )));
    }
    let shown = || excerpt(&String::from_utf8_lossy(body));
    let Some(images) = answer.get("detections").and_then(Value::as_array) else {
        return Err(Failure::lasting(format!(
            "answered {PATH} without a list `detections`: {}",
            shown()
        )));
    };
    if images.len() != wanted.len() {
        return Err(Failure::lasting(format!(
            "gave detections of {} images for {}: {}",
            images.len(),
            wanted.len(),
            shown()
        )));
    }
    let found = |(sample, (image, wanted)): (usize, (&Value, &Wanted))| {
        of_image(image, wanted).map_err(|problem| Failure {
            sample: Some(sample),
            ..Failure::lasting(format!(
                "gave for image {} of {} {problem}",
                sample + 1,
                images.len()
            ))
        })
    };
    images.iter().zip(wanted).enumerate().map(found).collect()
}

fn of_image(image: &Value, wanted: &Wanted) -> Result<Found, String> {
    let mut found: Found = serde_json::from_value(image.clone()).map_err(|error| {
        format!(
            "{}, which is no list of detections ({error})",
            excerpt(&image.to_string())
        )
    })?;
    for object in &found {
        let shown = || {
            format!(
                "a `{}` of the score {} at {:?}",
                object.class, object.score, object.place
            )
        };
        let [left, top, right, bottom] = object.place;
        if !(0.0..=1.0).contains(&object.score) {
            return Err(format!("{}; scores are from 0 to 1", shown()));
        }
        // NaN compares as false.
        if !(left <= right && top <= bottom && object.place.iter().all(|end| end.is_finite())) {
            return Err(format!("{}; a box is left, top, right and bottom", shown()));
        }
        if object.color.is_none() && wanted.needs_color(&object.class) {
            return Err(format!(
                "{} without a `color`, which the prompt asks for",
                shown()
            ));
        }
    }
    // Stable, so that equally sure objects stay in the server's order.
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(found)
}
