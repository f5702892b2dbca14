//! A repository is fetched from a hub on this machine: what comes, and what happens when something goes wrong.

mod common;

use common::*;
use flow_hub::{HubError, Stage};
use std::fs;
use test_support::hub_server::{COMMIT, REPOSITORY};

#[test]
fn a_pipeline_comes_with_the_files_that_it_is_read_from_and_no_others() {
    let place = Place::new();
    let fetched = place.fetch().unwrap();
    assert_eq!(fetched.commit, COMMIT);
    assert_eq!(fetched.present_files, 0);
    assert_eq!(
        place.files(),
        [
            "model_index.json",
            "transformer/config.json",
            "transformer/diffusion_pytorch_model.safetensors"
        ]
    );
    for (path, content, _) in pipeline().iter().filter(|it| place.has(it.0)) {
        assert_eq!(&fs::read(place.path(path)).unwrap(), content, "{path}");
    }
    let size = WEIGHTS_BYTES + INDEX.len() + CONFIG.len();
    assert_eq!(fetched.size_bytes, size as u64);
}

#[test]
fn a_list_of_several_pages_is_read_to_its_end() {
    let place = Place::new();
    place.server.state().page_length = 2;
    assert_eq!(
        place.hub().list(REPOSITORY, None).unwrap().files.len(),
        pipeline().len()
    );
    let pages = place
        .server
        .state()
        .received
        .iter()
        .filter(|it| it.target.contains("/tree/"))
        .count();
    assert_eq!(
        pages,
        (pipeline().len() + 1).div_ceil(2),
        "the hub lists a folder, too"
    );
}

#[test]
fn a_revision_is_asked_for_by_its_name_and_files_by_its_commit() {
    let place = Place::new();
    place.fetch_with(Some("refs/pr/1"), None).unwrap();
    let state = place.server.state();
    assert!(state.received[0].target.ends_with("/revision/refs%2Fpr%2F1"));
    let rest = state.received.iter().skip(1).filter(|it| !it.by_store);
    assert!(rest.into_iter().all(|it| it.target.contains(COMMIT)));
}

#[test]
fn the_token_goes_to_the_hub_and_never_to_the_store() {
    let mut place = Place::new();
    place.server.state().token = Some("hf_secret".into());
    place.token = Some("hf_secret");
    place.fetch().unwrap();
    let state = place.server.state();
    let (store, hub): (Vec<_>, Vec<_>) = state.received.iter().partition(|it| it.by_store);
    assert!(!store.is_empty() && store.iter().all(|it| it.authorization.is_none()));
    assert!(
        hub.iter()
            .all(|it| it.authorization.as_deref() == Some("Bearer hf_secret"))
    );
}

#[test]
fn a_connection_that_is_cut_is_resumed_from_its_last_byte() {
    let place = Place::new();
    place.server.state().cuts = vec![(WEIGHTS.into(), 1001), (WEIGHTS.into(), 500)];
    place.fetch().unwrap();
    let ranges = place.server.content_requests(WEIGHTS);
    let ranges: Vec<Option<&str>> = ranges.iter().map(Option::as_deref).collect();
    assert_eq!(ranges, [None, Some("bytes=1001-"), Some("bytes=1501-")]);
    assert_eq!(fs::read(place.path(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_line_that_is_cut_more_often_than_attempts_are_allowed_still_ends_whole() {
    let place = Place::new();
    place.server.state().cuts = vec![(WEIGHTS.into(), 10); 3 * ATTEMPTS as usize];
    place.fetch().unwrap();
    assert_eq!(fs::read(place.path(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_fetch_that_was_stopped_goes_on_from_the_part_on_disk() {
    let place = Place::new();
    // The first answer ends early, and all those after it fail.
    place.server.state().cuts = vec![(WEIGHTS.into(), 1234)];
    place.server.state().store_statuses.extend([0, 503, 503, 503]);
    let error = place.fetch().unwrap_err();
    assert!(
        matches!(
            error,
            HubError::Status {
                attempts: ATTEMPTS,
                ..
            }
        ),
        "{error}"
    );
    assert!(!place.has(WEIGHTS), "a file that is not whole has not its name");
    place.server.state().store_statuses.clear();
    place.server.state().received.clear();
    let fetched = place.fetch().unwrap();
    assert_eq!(fetched.present_files, 2, "what came whole does not come again");
    assert_eq!(
        place.server.content_requests(WEIGHTS),
        [Some("bytes=1234-".to_owned())]
    );
    assert_eq!(fs::read(place.path(WEIGHTS)).unwrap(), weights());
    assert!(!place.has(&format!("{WEIGHTS}.part")));
}

#[test]
fn a_part_of_another_file_is_noticed_by_the_hash_and_fetched_anew() {
    let place = Place::new();
    for part in [vec![7; 900], vec![7; WEIGHTS_BYTES], vec![7; WEIGHTS_BYTES + 1]] {
        fs::create_dir_all(place.path("transformer")).unwrap();
        fs::write(place.path(&format!("{WEIGHTS}.part")), part).unwrap();
        place.fetch().unwrap();
        assert_eq!(fs::read(place.path(WEIGHTS)).unwrap(), weights());
        fs::remove_file(place.path(WEIGHTS)).unwrap();
    }
}

#[test]
fn a_store_that_ignores_ranges_is_read_from_the_beginning() {
    let place = Place::new();
    place.server.state().ignores_ranges = true;
    place.server.state().cuts = vec![(WEIGHTS.into(), 1001)];
    place.fetch().unwrap();
    assert_eq!(fs::read(place.path(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_damaged_file_is_refused_and_removed_whichever_hash_it_has() {
    for path in [WEIGHTS, "transformer/config.json"] {
        let place = Place::new();
        place.server.state().damaged.push(path.into());
        let error = place.fetch().unwrap_err();
        assert!(matches!(error, HubError::Hash { .. }), "{error}");
        expect(&error, &[path, "damaged or exchanged"]);
        assert!(!place.has(path) && !place.has(&format!("{path}.part")));
        place.fetch().unwrap();
        assert!(place.has(path));
    }
}

#[test]
fn a_server_that_is_busy_is_asked_again() {
    let place = Place::new();
    place.server.state().statuses.extend([503, 429]);
    place.server.state().store_statuses.extend([403, 500]);
    place.fetch().unwrap();
    assert!(place.has(WEIGHTS));
}

#[test]
fn a_server_that_stays_busy_is_given_up_with_its_status() {
    let place = Place::new();
    place.server.state().statuses.extend([503; ATTEMPTS as usize]);
    let error = place.fetch().unwrap_err();
    expect(&error, &["status 503", "tried 3 times"]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let mut place = Place::new();
    place.endpoint = "http://127.0.0.1:1".into();
    let error = place.fetch().unwrap_err();
    expect(&error, &["http://127.0.0.1:1/api/models", "tried 3 times"]);
}

#[test]
fn files_that_are_there_are_compared_and_not_fetched_again() {
    let place = Place::new();
    place.fetch().unwrap();
    place.server.state().received.clear();
    let mut compared = 0;
    let again = place.fetch_told(&mut |progress| {
        assert_eq!(progress.stage, Stage::Comparing);
        assert!(progress.done_bytes <= progress.all_bytes);
        compared = progress.done_bytes;
    });
    let again = again.unwrap();
    assert_eq!((again.present_files, again.files.len()), (3, 3));
    assert_eq!(compared, again.size_bytes);
    assert_eq!(
        place.server.content_requests(WEIGHTS),
        Vec::<Option<String>>::new()
    );
}

#[test]
fn a_file_with_another_content_is_not_written_over() {
    let place = Place::new();
    fs::create_dir_all(place.path("transformer")).unwrap();
    for other in [&b"mine"[..], &[0; CONFIG.len()]] {
        fs::write(place.path("transformer/config.json"), other).unwrap();
        let error = place.fetch().unwrap_err();
        assert!(matches!(error, HubError::Exists { .. }), "{error}");
        expect(&error, &["config.json", "move it away"]);
        assert_eq!(fs::read(place.path("transformer/config.json")).unwrap(), other);
        assert_eq!(
            place.files(),
            ["transformer/config.json"],
            "nothing else was begun"
        );
    }
}

#[test]
fn progress_goes_from_the_first_byte_to_the_last() {
    let place = Place::new();
    place.server.state().cuts = vec![(WEIGHTS.into(), 1001)];
    let mut seen = Vec::new();
    let fetched = place.fetch_told(&mut |progress| {
        assert_eq!((progress.stage, progress.files), (Stage::Downloading, 3));
        seen.push((progress.file_number, progress.done_bytes, progress.all_bytes));
    });
    let all = fetched.unwrap().size_bytes;
    assert!(seen.is_sorted() && seen.iter().all(|it| it.2 == all), "{seen:?}");
    assert_eq!(seen.last(), Some(&(3, all, all)));
}
