//! Files that commands write: what is there is kept, and what cannot be written is said before the work.

use crate::support::{Place, contains};

fn sample<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["sample", "tiny.toml", "--prompt", "bold 7", "-n", "1"];
    arguments.extend(more);
    arguments
}

#[test]
fn sample_keeps_pictures_and_refuses_what_is_no_png() {
    let place = Place::new();
    // Without a name the next free one is taken.
    for name in ["sample.png", "sample-2.png"] {
        contains(&place.succeed(&sample(&[])), &[name]);
    }
    place.succeed(&sample(&["--out", "new/deep/a.png"]));
    let first = place.bytes("new/deep/a.png");
    std::fs::write(place.path("new/deep/a.png"), "mine").unwrap();
    let error = place.fail(2, &sample(&["--out", "new/deep/a.png"]));
    contains(&error, &["is there already", "--on-exists overwrite"]);
    assert_eq!(place.text("new/deep/a.png"), "mine");
    place.succeed(&sample(&["--out", "new/deep/a.png", "--on-exists", "overwrite"]));
    assert_eq!(place.bytes("new/deep/a.png"), first);
    assert_eq!(place.text("new/deep/a.png.old"), "mine");

    for (out, wanted) in [
        ("x.jpg", "name it `x.png`"),
        ("x", "name it `x.png`"),
        ("new", "is a folder"),
        ("tiny.toml/x.png", "tiny.toml is a file"),
    ] {
        contains(&place.fail(2, &sample(&["--out", out])), &[wanted, "--out"]);
    }
    assert!(!place.path("x.jpg").exists() && !place.path("x").exists());
}

#[test]
fn sample_writes_each_image_to_a_file_of_its_own_and_keeps_those_that_are_there() {
    let place = Place::new();
    let each = |more: &[&'static str]| {
        let mut arguments = vec!["sample", "tiny.toml", "--prompt", "bold 7", "--prompt", "thin 3"];
        arguments.extend(["-n", "2", "--each"]);
        arguments.extend(more);
        arguments
    };
    let out = place.succeed(&each(&["--out", "new/a.png", "--quiet"]));
    let names = [
        "new/a-prompt-001-sample-001.png",
        "new/a-prompt-001-sample-002.png",
        "new/a-prompt-002-sample-001.png",
        "new/a-prompt-002-sample-002.png",
        "new/a.png",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), names, "in order, the grid last");
    // The size of an image: 8 by 8, not that of its place in the grid. PNG has both sides from byte 16 on.
    let pictures: Vec<Vec<u8>> = names[..4].iter().map(|name| place.bytes(name)).collect();
    for picture in &pictures {
        assert_eq!(picture[16..24], [0, 0, 0, 8, 0, 0, 0, 8]);
    }
    assert!(
        pictures
            .iter()
            .zip(&pictures[1..])
            .all(|(one, other)| one != other)
    );
    // They are those of the grid, whether or not they are written.
    place.succeed(&[
        "sample",
        "tiny.toml",
        "--prompt",
        "bold 7",
        "--prompt",
        "thin 3",
        "-n",
        "2",
        "--out",
        "b.png",
    ]);
    assert_eq!(place.bytes("new/a.png"), place.bytes("b.png"));

    // One of them is in the way: nothing is written, or all of it goes elsewhere, or what is there is moved aside.
    for name in names {
        std::fs::remove_file(place.path(name)).unwrap();
    }
    std::fs::write(place.path(names[2]), "mine").unwrap();
    contains(
        &place.fail(2, &each(&["--out", "new/a.png"])),
        &[
            "a-prompt-002-sample-001.png is there already",
            "--on-exists overwrite",
        ],
    );
    assert!(!place.path(names[4]).exists());
    place.succeed(&each(&["--out", "new/a.png", "--on-exists", "new"]));
    assert_eq!(place.bytes("new/a-2-prompt-001-sample-002.png"), pictures[1]);
    assert!(place.path("new/a-2.png").exists() && !place.path(names[4]).exists());
    assert_eq!(place.text(names[2]), "mine");
    place.succeed(&each(&["--out", "new/a.png", "--on-exists", "overwrite"]));
    assert_eq!(place.bytes(names[2]), pictures[2]);
    assert_eq!(place.text("new/a-prompt-002-sample-001.png.old"), "mine");
    contains(
        &place.succeed(&each(&[])),
        &["sample-prompt-001-sample-001.png", "sample.png"],
    );
}

#[test]
fn plan_import_and_calibrate_keep_what_is_there() {
    let place = Place::new();
    let budget = "checkpointing={ policy = \"budget\", peak_gib = 1.0 }";
    let plan = ["plan", "tiny.toml", "--set", budget, "--out", "planned"];
    place.succeed(&plan);
    std::fs::write(place.path("planned/plan.svg"), "mine").unwrap();
    contains(&place.fail(2, &plan), &["plan.json is there already"]);
    let mut again = plan.to_vec();
    again.extend(["--on-exists", "new"]);
    place.succeed(&again);
    assert!(place.path("planned-2/plan.json").exists());
    assert_eq!(place.text("planned/plan.svg"), "mine");

    let calibrate = [
        "calibrate",
        "tiny.toml",
        "--policy",
        "magcache",
        "--out",
        "tiny.toml",
    ];
    let config = place.text("tiny.toml");
    contains(&place.fail(2, &calibrate), &["tiny.toml is there already"]);
    assert_eq!(place.text("tiny.toml"), config);
}

#[test]
fn pretrain_keeps_the_weights_and_the_classifier_that_are_there() {
    let place = Place::new();
    let weights = place.bytes("tiny.safetensors");
    let other = ["pretrain", "tiny.toml", "--set", "pretrain.seed=9"];
    contains(
        &place.fail(2, &other),
        &[
            "tiny.safetensors is there already",
            "`pretrain.output`",
            "overwrite",
        ],
    );
    assert!(place.bytes("tiny.safetensors") == weights);
    let mut replaced = other.to_vec();
    replaced.extend(["--on-exists", "overwrite"]);
    place.succeed(&replaced);
    assert!(place.bytes("tiny.safetensors") != weights);
    assert!(place.bytes("tiny.safetensors.old") == weights);

    let bare = Place::bare();
    bare.edit(|text| {
        text.replace(
            "enabled = false",
            "enabled = true\nsteps = 9\nchannels = 4\noutput = \"reads.safetensors\"",
        )
    });
    std::fs::write(bare.path("reads.safetensors"), "mine").unwrap();
    contains(
        &bare.fail(2, &["pretrain", "tiny.toml"]),
        &["reads.safetensors is there already", "pretrain.classifier.output"],
    );
    assert_eq!(bare.text("reads.safetensors"), "mine");
    assert!(!bare.path("tiny.safetensors").exists(), "nothing is begun");
}

#[cfg(unix)]
#[test]
fn pretraining_that_was_killed_or_interrupted_goes_on_to_the_same_bytes() {
    let config = |text: String| text.replace("steps = 3\n", "steps = 3000\n");
    let whole = Place::bare();
    whole.edit(config);
    whole.succeed(&["pretrain", "tiny.toml", "--quiet"]);
    let place = Place::bare();
    place.edit(config);

    contains(
        &place.fail(2, &["pretrain", "tiny.toml", "--resume", "latest"]),
        &["there is no pretraining to go on with"],
    );
    let mut child = place
        .command(&["pretrain", "tiny.toml", "--quiet", "--save-every", "0"])
        .spawn()
        .unwrap();
    let state = "tiny.pretraining.ckpt";
    while !place.path(state).exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it was killed"
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.path("tiny.safetensors").exists());

    contains(
        &place.fail(2, &["pretrain", "tiny.toml"]),
        &["was stopped", "--resume latest", "--on-exists overwrite"],
    );
    let other = [
        "pretrain",
        "tiny.toml",
        "--resume",
        "latest",
        "--set",
        "pretrain.batch=6",
    ];
    contains(&place.fail(2, &other), &["`pretrain.batch` = 5", "has 6"]);
    contains(
        &place.fail(2, &["pretrain", "tiny.toml", "--resume", "tiny.toml"]),
        &["tiny.toml"],
    );
    let mut damaged = place.bytes(state);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(place.path("damaged.ckpt"), damaged).unwrap();
    contains(
        &place.fail(2, &["pretrain", "tiny.toml", "--resume", "damaged.ckpt"]),
        &["is corrupt", "keeps one state", "--on-exists overwrite"],
    );
    let resumed = ["pretrain", "tiny.toml", "--resume", "latest"];
    let seen = crate::resume::interrupted(&place, &resumed, "step ");
    contains(
        &seen,
        &[
            "goes on after step",
            "interrupted after ",
            "to go on: flow-train pretrain tiny.toml --resume latest",
        ],
    );
    place.succeed(&resumed);
    assert!(place.bytes("tiny.safetensors") == whole.bytes("tiny.safetensors"));
    assert!(!place.path(state).exists());
    contains(&place.succeed(&resumed), &["is complete"]);
}

/// File names are bytes on unix.
#[cfg(unix)]
#[test]
fn paths_that_are_no_utf_8_work_and_are_written_down_readably() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let folder = place.path(OsStr::from_bytes(b"f\xff"));
    std::fs::create_dir(&folder).unwrap();
    for name in ["tiny.toml", "tiny.safetensors"] {
        std::fs::copy(place.path(name), folder.join(name)).unwrap();
    }
    let run = |arguments: &[&OsStr]| {
        let mut command = place.command(&[]);
        command.args(arguments);
        crate::support::Outcome::of(command.output().unwrap())
    };
    let config = folder.join("tiny.toml");
    let weights = folder.join("tiny.safetensors");
    let word = OsStr::new;
    let one_step = [word("--set"), word("run.steps=1")];
    let train = [&[word("train"), config.as_os_str()], &one_step[..]].concat();
    let outcome = run(&train);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let manifest: serde_json::Value = serde_json::from_str(&place.text("runs/tiny/run.json")).unwrap();
    let said = manifest["command"][2].as_str().unwrap();
    assert!(said.ends_with("/f\\xff/tiny.toml"), "{said}");

    let out = folder.join("a.png");
    let missing = folder.join("none.ckpt");
    let sample = ["sample", "--prompt", "bold 7", "-n", "1"].map(word);
    let sample = [&sample[..1], &[config.as_os_str()], &sample[1..]].concat();
    let cases: [(Vec<&OsStr>, i32); 6] = [
        (vec![word("check"), config.as_os_str()], 0),
        (vec![word("plan"), config.as_os_str()], 0),
        (
            vec![
                word("eval"),
                config.as_os_str(),
                word("--weights"),
                weights.as_os_str(),
            ],
            0,
        ),
        ([&sample[..], &[word("--out"), out.as_os_str()]].concat(), 0),
        ([&train[..], &[word("--resume"), missing.as_os_str()]].concat(), 2),
        (vec![word("report"), folder.as_os_str()], 2),
    ];
    for (arguments, code) in cases {
        let outcome = run(&arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:#?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    }
    assert!(out.exists());
}
