//! Pretraining on pictures of many proportions, in batches of one size.

use super::{captions, picture, place, values};
use crate::support::{Place, contains};
use std::fs;

/// Pictures of many proportions in `pictures`, each with a caption, and the config `pictures.toml`.
fn of_many_proportions(place: &Place) {
    captions(place);
    for (number, (width, height)) in [(64, 48), (96, 70), (50, 66), (90, 30), (48, 64)]
        .iter()
        .enumerate()
    {
        let number = number + 3;
        picture(
            &place.path(format!("pictures/{number}.png")),
            *width,
            *height,
            number,
        );
        fs::write(
            place.path(format!("pictures/{number}.txt")),
            format!("waves {number}"),
        )
        .unwrap();
    }
}

const BUCKETS: [&str; 2] = ["--set", "data.buckets={ step = 16 }"];

#[test]
fn check_counts_the_pictures_of_each_bucket() {
    let place = place("sd3");
    of_many_proportions(&place);
    let check = [&["check", "pictures.toml", "--for", "pretrain"], &BUCKETS[..]].concat();
    // Of (70, 51), (48, 64), (33, 90), (64, 48), (96, 70), (50, 66), (90, 30), (48, 64) by hand.
    let said = place.succeed(&check);
    contains(
        &said,
        &["bucket   pictures", "2 of 4 buckets have fewer pictures"],
    );
    for (size, count) in [("32 x 80", 1), ("48 x 64", 3), ("64 x 48", 3), ("96 x 32", 1)] {
        let line = format!("{size}  {count:>8}");
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    let json = place.succeed(&[&check[..], &["--format", "json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["buckets"][1],
        serde_json::json!({ "width": 48, "height": 64, "pictures": 3 })
    );
    // Without buckets there is nothing to count.
    let plain = place.succeed(&["check", "pictures.toml", "--for", "pretrain"]);
    assert!(!plain.contains("bucket"), "{plain}");
    let fail = |set: &str| place.fail(2, &["check", "pictures.toml", "--for", "pretrain", "--set", set]);
    contains(
        &fail("data.buckets={ step = 40 }"),
        &["data.buckets", "multiple of 16 pixels", "`data.buckets.step`"],
    );
    contains(
        &fail("data.buckets={ sizes = [] }"),
        &["data.buckets.sizes", "is empty"],
    );
    contains(
        &fail("data.buckets={ steps = 16 }"),
        &["has no key `steps`", "`step`"],
    );
}

#[test]
fn a_bucket_of_another_size_trains_what_a_model_of_that_size_does() {
    for name in test_support::PIPELINES {
        let place = place(name);
        captions(&place);
        let pretrain = |out: &str, size: [&str; 2], more: &[&str]| {
            let output = format!("pretrain.output={out}.safetensors");
            let size = ["--set", size[0], "--set", size[1], "--set", &output];
            place.succeed(&[&["pretrain", "pictures.toml"], &size[..], more].concat());
            values(&place, &format!("{out}.safetensors"))
        };
        // The folder's model is made for 48 by 64, and every picture goes to 64 by 48.
        let list = ["--set", "data.buckets={ sizes = [[64, 48]] }"];
        let bucket = pretrain("bucket", ["model.width=48", "model.height=64"], &list);
        let whole = pretrain("whole", ["model.width=64", "model.height=48"], &[]);
        assert!(bucket == whole, "{name}: another LoRA");
        let other = pretrain("other", ["model.width=48", "model.height=64"], &[]);
        assert!(bucket != other, "{name}: sizes differ");
    }
}

#[cfg(unix)]
#[test]
fn pictures_of_many_proportions_train_in_batches_of_one_size_and_go_on_to_the_same_bytes() {
    for name in test_support::PIPELINES {
        let place = place(name);
        of_many_proportions(&place);
        let pretrain = |out: &str, more: &[&str]| {
            let output = format!("pretrain.output={out}.safetensors");
            let keys = ["--set", "pretrain.steps=12", "--set", &output];
            let outcome =
                place.run(&[&["pretrain", "pictures.toml"], &keys[..], &BUCKETS[..], more].concat());
            assert_eq!(outcome.code, Some(0), "{name}: {outcome:#?}");
            format!("{}{}", outcome.stdout, outcome.stderr)
        };
        let said = pretrain("first", &[]);
        contains(
            &said,
            &[
                "pictures: 8 encoded",
                "pictures: 8 in 4 buckets: ",
                "48 x 64 has 3",
                "96 x 32 has 1",
            ],
        );
        let again = pretrain("again", &[]);
        contains(&again, &["pictures: 0 encoded, 8 found"]);
        assert!(values(&place, "first.safetensors") == values(&place, "again.safetensors"));
        // Killed in the middle: what waited for its bucket waits again.
        let keys = [
            "--set",
            "pretrain.steps=12",
            "--set",
            "pretrain.output=parts.safetensors",
        ];
        let keys = [
            &["pretrain", "pictures.toml", "--save-every", "0"],
            &keys[..],
            &BUCKETS[..],
        ]
        .concat();
        let mut child = place.command(&keys).spawn().unwrap();
        while !place.path("parts.pretraining.ckpt").exists() {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended before it was killed"
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        pretrain("parts", &["--resume", "latest"]);
        assert!(values(&place, "first.safetensors") == values(&place, "parts.safetensors"));
        let other = pretrain("seed", &["--set", "pretrain.seed=9"]);
        contains(&other, &["pictures: 0 encoded"]);
        assert!(values(&place, "first.safetensors") != values(&place, "seed.safetensors"));
    }
}
