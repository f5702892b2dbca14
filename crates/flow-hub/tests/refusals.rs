//! What cannot be fetched says why, and what to do.

mod common;

use common::*;
use flow_hub::HubError;
use std::fs;
use test_support::hub_server::HubServer;

#[test]
fn a_repository_that_wants_a_token_says_how_to_get_one() {
    let place = Place::new();
    place.server.state().token = Some("hf_secret".into());
    let error = place.fetch().unwrap_err();
    let page = format!("{}/organisation/small-model", place.endpoint);
    expect(
        &error,
        &["status 401", "HF_TOKEN", "licence", &page, "/settings/tokens"],
    );
}

#[test]
fn a_token_that_is_wrong_is_not_shown() {
    let mut place = Place::new();
    place.server.state().token = Some("hf_secret".into());
    place.token = Some("hf_wrong");
    let error = place.fetch().unwrap_err();
    expect(&error, &["status 401", "the token (HF_TOKEN) is not valid"]);
    assert!(!error.to_string().contains("hf_wrong"));
}

#[test]
fn a_gated_repository_says_where_its_licence_is_accepted() {
    let mut place = Place::new();
    place.server.state().is_gated = true;
    let error = place.fetch().unwrap_err();
    expect(
        &error,
        &[
            "status 403",
            "gated",
            "accept its licence",
            "set HF_TOKEN",
            "Access to this model is restricted",
        ],
    );
    place.token = Some("hf_any");
    let error = place.fetch().unwrap_err();
    expect(
        &error,
        &[
            "status 403",
            "with the account of the token",
            "accept its licence",
        ],
    );
}

#[test]
fn names_that_are_not_there_are_told_apart() {
    let mut place = Place::new();
    let error = place.fetch_with(Some("v9"), None).unwrap_err();
    assert!(matches!(error, HubError::NoRevision { .. }), "{error}");
    expect(&error, &["`v9`", "a branch"]);
    place.repository = "organisation/other-model";
    let error = place.fetch().unwrap_err();
    assert!(matches!(error, HubError::NoRepository { .. }), "{error}");
    expect(&error, &["`organisation/other-model`"]);
}

#[test]
fn what_is_no_name_of_a_repository_asks_for_one_and_nobody_is_asked() {
    for name in ["model", "a/b/c", "https://huggingface.co/a/b", "../x", "a/..", ""] {
        let mut place = Place::new();
        place.repository = name;
        let error = place.fetch().unwrap_err();
        assert!(matches!(error, HubError::Name { .. }), "{error}");
        expect(&error, &["organisation/name"]);
        assert!(place.server.state().received.is_empty());
    }
}

#[test]
fn a_path_that_leads_out_of_the_folder_stops_everything() {
    for path in [
        "../outside.json",
        "/outside.json",
        "transformer/../../outside.json",
        "a\\..\\outside.json",
    ] {
        let place = Place::with(&[
            ("model_index.json", INDEX.as_bytes(), false),
            (path, b"{}", false),
        ]);
        let error = place.fetch().unwrap_err();
        assert!(matches!(error, HubError::Path { .. }), "{error}");
        assert!(place.files().is_empty());
    }
}

#[test]
fn a_redirect_to_what_is_no_hub_is_refused_with_its_address() {
    let place = Place::new();
    for (to, part) in [
        ("ftp://127.0.0.1/a", "`ftp`"),
        ("http://me@127.0.0.1/a", "name or a password"),
    ] {
        place.server.state().redirect = Some(to.into());
        let error = place.fetch().unwrap_err();
        assert!(matches!(error, HubError::Redirect { .. }), "{error}");
        expect(&error, &[to, part]);
    }
    place.server.state().redirect = Some("model_index.json?again".into());
    let error = place.fetch().unwrap_err();
    expect(&error, &["more than 10 redirects"]);
    assert!(
        !error.to_string().contains("again"),
        "queries may hold signatures: {error}"
    );
}

#[test]
fn a_redirect_to_another_server_gets_no_token() {
    let mut place = Place::new();
    let other = HubServer::start(&[]);
    place.token = Some("hf_secret");
    // The same host under another name, and another port: neither is the endpoint.
    let port = place.endpoint.rsplit(':').next().unwrap().to_owned();
    for to in [
        format!("http://localhost:{port}/elsewhere"),
        format!("{}/elsewhere", other.endpoint),
    ] {
        place.server.state().redirect = Some(to);
        place.server.state().received.clear();
        place.fetch().unwrap_err();
        let own = place.server.state().received.clone();
        let redirected: Vec<_> = own
            .into_iter()
            .chain(other.state().received.clone())
            .filter(|it| it.target == "/elsewhere")
            .collect();
        assert!(!redirected.is_empty());
        assert!(redirected.iter().all(|it| it.authorization.is_none()));
    }
}

#[test]
fn pages_to_log_in_are_not_taken_for_the_hub() {
    let place = Place::with(&[("model_index.json", b"<!doctype html><p>Log in", false)]);
    let error = place.fetch().unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
    expect(&error, &["model_index.json", "no JSON object", "page to log in"]);
}

#[test]
fn a_variant_that_is_not_there_names_those_that_are() {
    let place = Place::new();
    let error = place.fetch_with(None, Some("bf16")).unwrap_err();
    expect(&error, &["`bf16`", "the variant `fp16`"]);
    place.fetch_with(None, Some("fp16")).unwrap();
    assert!(place.has("transformer/diffusion_pytorch_model.fp16.safetensors") && !place.has(WEIGHTS));
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let place = Place::new();
    fs::write(place.path("transformer"), "a file").unwrap();
    let error = place.fetch().unwrap_err();
    assert!(matches!(error, HubError::Io { .. }), "{error}");
    expect(&error, &["transformer", "make the folder"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_says_how_much_is_missing() {
    let place = Place::new();
    fs::create_dir_all(place.path("transformer")).unwrap();
    // Writing to this device fails as writing to a full disk does.
    std::os::unix::fs::symlink("/dev/full", place.path(&format!("{WEIGHTS}.part"))).unwrap();
    let error = place.fetch().unwrap_err();
    assert!(matches!(error, HubError::DiskFull { .. }), "{error}");
    expect(
        &error,
        &[&format!("{WEIGHTS_BYTES} more bytes"), "Free space", "resumed"],
    );
    assert!(!place.has(WEIGHTS));
}

#[test]
fn two_processes_do_not_write_the_same_file() {
    let place = Place::new();
    fs::create_dir_all(place.path("transformer")).unwrap();
    let other = fs::File::create(place.path(&format!("{WEIGHTS}.part"))).unwrap();
    other.lock().unwrap();
    let error = place.fetch().unwrap_err();
    assert!(matches!(error, HubError::Busy { .. }), "{error}");
    drop(other);
    place.fetch().unwrap();
}
