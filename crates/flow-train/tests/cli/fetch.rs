//! `fetch`, from a hub on this machine.

use crate::support::{Outcome, Place, contains};
use test_support::hub_server::{COMMIT, HubServer, REPOSITORY};

const INDEX: &[u8] = br#"{"_class_name": "SomePipeline", "transformer": ["diffusers", "SomeTransformer"]}"#;
const WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";
const FP16: &str = "transformer/diffusion_pytorch_model.fp16.safetensors";

fn hub() -> HubServer {
    HubServer::start(&[
        ("model_index.json", INDEX, false),
        ("transformer/config.json", b"{}", false),
        ("transformer/diffusion_pytorch_model.bin", b"a pickle", true),
        (FP16, b"halves", true),
        (WEIGHTS, &[7; 3000], true),
    ])
}

fn fetch(place: &Place, hub: &HubServer, arguments: &[&str], token: Option<&str>) -> Outcome {
    let mut command = place.command(&[&["fetch"], arguments].concat());
    for name in ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "HF_TOKEN"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.env("HF_ENDPOINT", &hub.endpoint);
    command.envs(token.map(|token| ("HF_TOKEN", token)));
    Outcome::of(command.output().unwrap())
}

#[test]
fn a_model_is_fetched_into_a_folder_of_its_name_and_a_second_time_nothing_is() {
    let (place, hub) = (Place::bare(), hub());
    let first = fetch(&place, &hub, &[REPOSITORY], None);
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""));
    contains(&first.stdout, &["small-model: 3 files", "KiB", COMMIT]);
    assert_eq!(
        place.files(),
        [
            "small-model/model_index.json",
            "small-model/transformer/config.json",
            &format!("small-model/{WEIGHTS}"),
            "tiny.toml"
        ]
    );
    let again = fetch(&place, &hub, &[REPOSITORY], None);
    contains(&again.stdout, &["3 of which were there"]);
    assert_eq!(hub.content_requests(WEIGHTS).len(), 1);
}

#[test]
fn revision_variant_and_folder_are_those_that_are_named() {
    let (place, hub) = (Place::bare(), hub());
    let options = [
        "--revision",
        COMMIT,
        "--variant",
        "fp16",
        "--out",
        "models/some model",
    ];
    let outcome = fetch(&place, &hub, &[&[REPOSITORY], &options[..]].concat(), None);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    contains(&outcome.stdout, &["'models/some model': 3 files"]);
    assert_eq!(place.bytes(&format!("models/some model/{FP16}")), b"halves");
    assert!(!place.path(format!("models/some model/{WEIGHTS}")).exists());
    assert!(hub.state().received[0].target.ends_with(COMMIT));
}

#[test]
fn what_was_named_wrongly_is_bad_input_with_what_to_do() {
    let (place, hub) = (Place::bare(), hub());
    let fail = |arguments: &[&str], token: Option<&str>| {
        let outcome = fetch(&place, &hub, arguments, token);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        outcome.stderr
    };
    contains(&fail(&["small-model"], None), &["organisation/name"]);
    contains(
        &fail(&["organisation/other"], None),
        &["`organisation/other`", "check the name"],
    );
    contains(
        &fail(&[REPOSITORY, "--revision", "v9"], None),
        &["`v9`", "a branch"],
    );
    contains(
        &fail(&[REPOSITORY, "--variant", "bf16"], None),
        &["`bf16`", "`fp16`"],
    );
    contains(
        &fail(&[REPOSITORY, "--out", "tiny.toml"], None),
        &["`--out`", "no folder"],
    );
    contains(
        &fail(&[REPOSITORY, "--out", ""], None),
        &["a value is required for '--out <FOLDER>'"],
    );
    hub.state().token = Some("hf_right".into());
    contains(
        &fail(&[REPOSITORY], None),
        &["HF_TOKEN", "licence", "/settings/tokens"],
    );
    let wrong = fail(&[REPOSITORY], Some("hf_wrong"));
    contains(&wrong, &["not valid"]);
    assert!(!wrong.contains("hf_wrong"), "no message shows a token: {wrong}");
    assert_eq!(place.files(), ["tiny.toml"], "nothing was written");
    assert_eq!(fetch(&place, &hub, &[REPOSITORY], Some("hf_right")).code, Some(0));
}

#[test]
fn a_file_of_the_user_is_not_written_over() {
    let (place, hub) = (Place::bare(), hub());
    std::fs::create_dir(place.path("small-model")).unwrap();
    std::fs::write(place.path("small-model/model_index.json"), "mine").unwrap();
    let outcome = fetch(&place, &hub, &[REPOSITORY], None);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    contains(
        &outcome.stderr,
        &["model_index.json` is there already", "move it away"],
    );
    assert_eq!(place.text("small-model/model_index.json"), "mine");
}

#[test]
fn a_damaged_download_fails_and_leaves_no_file_under_its_name() {
    let (place, hub) = (Place::bare(), hub());
    hub.state().damaged.push(WEIGHTS.into());
    let outcome = fetch(&place, &hub, &[REPOSITORY], None);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    contains(&outcome.stderr, &["SHA-256", "fetch it again"]);
    assert!(!place.path(format!("small-model/{WEIGHTS}")).exists());
}

#[test]
fn a_set_of_known_files_has_neither_revisions_nor_variants_and_asks_no_hub() {
    let (place, hub) = (Place::bare(), hub());
    for (option, value) in [("--revision", "v1"), ("--variant", "fp16")] {
        let outcome = fetch(&place, &hub, &["words", option, value], None);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        contains(&outcome.stderr, &[option, "`words` is a set of known files"]);
    }
    assert!(hub.state().received.is_empty());
    assert_eq!(place.files(), ["tiny.toml"]);
}
