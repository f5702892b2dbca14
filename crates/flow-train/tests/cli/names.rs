//! Every argument that names a thing is answered with the nearest name there is.

use crate::support::{Place, contains};

/// A folder in which there is something of every kind that an argument can name.
fn furnished() -> Place {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", "run.steps=1"]);
    std::fs::write(place.path("factory.yaml"), "model: {model_type: sd3-5}\n").unwrap();
    std::fs::write(place.path("mine.pretraining.ckpt"), "").unwrap();
    place
}

#[test]
fn every_argument_that_names_a_thing_is_answered_with_the_nearest_name() {
    let place = furnished();
    let resume = "runs/tiny/checkpoints/step-000009.ckpt";
    let cases: &[(&[&str], &str)] = &[
        // Commands and options.
        (&["trian", "tiny.toml"], "train"),
        (&["train", "tiny.toml", "--resum", "latest"], "--resume"),
        // Configs.
        (&["train", "tinny.toml"], "`tiny.toml`"),
        (&["pretrain", "tinny.toml"], "`tiny.toml`"),
        (&["sample", "tinny.toml", "--prompt", "bold 7"], "`tiny.toml`"),
        (&["eval", "tinny.toml"], "`tiny.toml`"),
        (&["check", "tinny.toml"], "`tiny.toml`"),
        (&["plan", "tinny.toml"], "`tiny.toml`"),
        (&["audit", "tinny.toml"], "`tiny.toml`"),
        (&["drift", "tinny.toml"], "`tiny.toml`"),
        (
            &["calibrate", "tinny.toml", "--policy", "magcache"],
            "`tiny.toml`",
        ),
        (&["migrate", "tinny.toml"], "`tiny.toml`"),
        (&["import", "factry.yaml"], "`factory.yaml`"),
        // Keys and values of keys.
        (&["check", "tiny.toml", "--set", "run.stepz=1"], "`steps`"),
        (&["check", "tiny.toml", "--set", "data.kind=digit"], "\"digits\""),
        // Files, runs, checkpoints.
        (
            &["eval", "tiny.toml", "--weights", "tinny.safetensors"],
            "/tiny.safetensors`",
        ),
        (
            &["train", "tiny.toml", "--set", "model.weights=tinny.safetensors"],
            "`tiny.safetensors`",
        ),
        (
            &["train", "tiny.toml", "--resume", resume],
            "`runs/tiny/checkpoints/step-00000",
        ),
        (
            &["pretrain", "tiny.toml", "--resume", "my.pretraining.ckpt"],
            "`mine.pretraining.ckpt`",
        ),
        (&["report", "runs/tinny"], "`runs/tiny`"),
        // Prompts.
        (&["sample", "tiny.toml", "--prompt", "bald 7"], "\"bold\""),
        // Choices.
        (&["audit", "tiny.toml", "--only", "atention=cpu"], "`attention`"),
        (
            &["audit", "tiny.toml", "--only", "attention=refrence"],
            "`reference`",
        ),
        (&["list", "acelerators"], "'accelerators'"),
        (&["completions", "bsh"], "'bash'"),
        (&["calibrate", "tiny.toml", "--policy", "tecache"], "'teacache'"),
        (&["check", "tiny.toml", "--device", "h10"], "'h100'"),
        (&["plan", "tiny.toml", "--format", "jsn"], "'json'"),
        (&["train", "tiny.toml", "--on-exists", "overwrit"], "'overwrite'"),
        // What `explain` explains.
        (&["explain", "learning_rat"], "learning_rate`"),
        (&["explain", "taylorser"], "`taylorseer`"),
        (&["explain", "acceleration::no-such-code"], "`acceleration::"),
        (&["explain", "optimizer.zzzzzz"], "`optimizer."),
    ];
    for (arguments, nearest) in cases {
        let error = place.fail(2, arguments);
        contains(&error, &[nearest]);
    }
}
