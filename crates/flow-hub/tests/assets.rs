//! Files that are known beforehand, from a server on this machine: some in an archive, some by themselves.

mod common;

use common::*;
use flow_hub::assets::{Download, Fetched, Member, fetch_known};
use flow_hub::{FileHash, HttpClient, HubError, RemoteFile, Retries};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Cursor, Write};
use std::time::Duration;
use test_support::hub_server::{COMMIT, REPOSITORY};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const ARCHIVE: &str = "package-1.0-py3-none-any.whl";

fn file(path: &str, content: &[u8]) -> RemoteFile {
    let digits: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    RemoteFile {
        path: path.into(),
        size_bytes: content.len() as u64,
        hash: FileHash::sha256(&digits).unwrap(),
    }
}

/// A zip of entries, deflated or stored.
fn archive_of(entries: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content, is_deflated) in entries {
        let method = match is_deflated {
            true => CompressionMethod::Deflated,
            false => CompressionMethod::Stored,
        };
        let options = SimpleFileOptions::default().compression_method(method);
        archive.start_file(*name, options).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// An archive with two files that are wanted and one that is not, and a file by itself.
struct Known {
    place: Place,
    downloads: Vec<Download>,
}

const CONFIG_MEMBER: &[u8] = b"{\"model_type\": \"bert\"}";

impl Known {
    fn new() -> Self {
        let weights = weights();
        let archive = archive_of(&[
            ("package/__init__.py", b"print()", true),
            ("package/model/weights.bin", &weights, false),
            ("package/model/config.json", CONFIG_MEMBER, true),
        ]);
        let alone = b"a decoder".as_slice();
        let place = Place::with(&[(ARCHIVE, &archive, true), ("decoder", alone, false)]);
        let url = |path: &str| format!("{}/{REPOSITORY}/resolve/{COMMIT}/{path}", place.endpoint);
        let member = |name: &str, path: &str, content: &[u8]| Member {
            name: name.into(),
            file: file(path, content),
        };
        let downloads = vec![
            Download {
                url: url(ARCHIVE),
                file: file(ARCHIVE, &archive),
                members: vec![
                    member("package/model/config.json", "encoder/config.json", CONFIG_MEMBER),
                    member("package/model/weights.bin", "encoder/weights.bin", &weights),
                ],
            },
            Download {
                url: url("decoder"),
                file: file("autoencoder/decoder", alone),
                members: Vec::new(),
            },
        ];
        Self { place, downloads }
    }

    fn fetch(&self) -> Result<Fetched, HubError> {
        let retries = Retries {
            attempts: ATTEMPTS,
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_millis(1),
        };
        let client = HttpClient::direct();
        fetch_known(
            &client,
            retries,
            &self.downloads,
            &self.place.path(""),
            &mut |_| {},
        )
    }
}

const FILES: [&str; 3] = [
    "autoencoder/decoder",
    "encoder/config.json",
    "encoder/weights.bin",
];

#[test]
fn what_is_wanted_comes_out_of_its_archive_and_a_second_time_nothing_comes() {
    let known = Known::new();
    let fetched = known.fetch().unwrap();
    assert_eq!((fetched.files.len(), fetched.present_files), (3, 0));
    assert_eq!(known.place.files(), FILES, "the archive is removed");
    assert_eq!(
        fs::read(known.place.path("encoder/weights.bin")).unwrap(),
        weights()
    );
    assert_eq!(
        fs::read(known.place.path("encoder/config.json")).unwrap(),
        CONFIG_MEMBER
    );
    assert_eq!(known.fetch().unwrap().present_files, 3);
    assert_eq!(known.place.server.content_requests(ARCHIVE).len(), 1);
}

#[test]
fn an_archive_that_was_cut_is_resumed_and_one_that_lies_there_is_not_asked_for() {
    let known = Known::new();
    known.place.server.state().cuts = vec![(ARCHIVE.into(), 300_000)];
    known.fetch().unwrap();
    let ranges = known.place.server.content_requests(ARCHIVE);
    assert_eq!(ranges, [None, Some("bytes=300000-".to_owned())]);
    // A user's own copy of the package, in an otherwise empty folder.
    let other = Known::new();
    let archive = other.place.server.state().files[ARCHIVE].0.clone();
    fs::write(other.place.path(ARCHIVE), archive).unwrap();
    other.fetch().unwrap();
    assert_eq!(other.place.server.content_requests(ARCHIVE).len(), 0);
    assert!(other.place.has(ARCHIVE) && other.place.has("encoder/weights.bin"));
}

#[test]
fn what_is_damaged_or_another_or_not_in_the_archive_is_refused_and_nothing_is_left_for_it() {
    let known = Known::new();
    known.place.server.state().damaged = vec![ARCHIVE.into()];
    expect(
        &known.fetch().unwrap_err(),
        &[ARCHIVE, "SHA-256", "fetch it again"],
    );
    assert!(known.place.files().is_empty(), "{:?}", known.place.files());
    let mut known = Known::new();
    known.downloads[0].members[0].name = "package/model/tokenizer.json".into();
    expect(
        &known.fetch().unwrap_err(),
        &[ARCHIVE, "no entry `package/model/tokenizer.json`"],
    );
    let mut known = Known::new();
    known.downloads[0].members[0].file = file("encoder/config.json", b"{\"model_type\": \"gpt2\"}");
    expect(&known.fetch().unwrap_err(), &["config.json", "SHA-256"]);
    assert!(!known.place.has("encoder/config.json"));
    let known = Known::new();
    fs::create_dir(known.place.path("encoder")).unwrap();
    fs::write(known.place.path("encoder/config.json"), "mine").unwrap();
    expect(&known.fetch().unwrap_err(), &["config.json", "another folder"]);
    assert_eq!(known.place.files(), ["encoder/config.json"]);
}
