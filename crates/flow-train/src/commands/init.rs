//! `init`: a config that runs, with its weights and its schema, for a program that was installed without the repository.

use crate::arguments::InitArguments;
use crate::failure::{Failure, OrFailure};
use crate::output::Output;
use crate::{command_line, terminal};
use flow_train::Registries;
use std::path::Path;

/// The config that is written, as the repository has it.
const CONFIG: &str = include_str!("../../init/digits-grpo.toml");
/// The weights that it starts from.
const WEIGHTS: &[u8] = include_bytes!("../../init/digits-dit.safetensors");

const CONFIG_NAME: &str = "digits-grpo.toml";
const WEIGHTS_NAME: &str = "digits-dit.safetensors";
const SCHEMA_NAME: &str = "flow-train.schema.json";

/// Writes the three files, or none if one of them is in the way.
pub fn run(arguments: &InitArguments) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let registries = Registries::built_in().or_failed()?;
    let schema = flow_train::schema_text(&registries);
    let config = beside_its_weights(CONFIG);
    let files: [(&str, &[u8]); 3] = [
        (WEIGHTS_NAME, WEIGHTS),
        (SCHEMA_NAME, schema.as_bytes()),
        (CONFIG_NAME, config.as_bytes()),
    ];
    let place = |name: &str| Output::at(&folder.join(name), "FOLDER", arguments.on_exists.into());
    let places: Vec<Output> = files
        .iter()
        .map(|(name, _)| place(name))
        .collect::<Result<_, _>>()?;
    for (output, (_, content)) in places.iter().zip(files) {
        output.make_room_and_say()?;
        flow_report::atomic_write(output.path(), "file", |out| out.write_all(content)).or_failed()?;
        terminal::line(&format!("wrote   {}", output.path().display()))?;
    }
    let config = match folder == Path::new(".") {
        true => CONFIG_NAME.into(),
        false => folder.join(CONFIG_NAME),
    };
    let config = command_line::quoted(config.as_os_str());
    terminal::print(&format!(
        "\nflow-train train {config}     trains for about half a minute on two cores\nflow-train plan {config}      shows what \
         that would do\nflow-train explain learning_rate     explains a key\n"
    ))
}

/// The config with its weights in its own folder, and the schema there too.
fn beside_its_weights(config: &str) -> String {
    let lines = config.lines().filter(|line| !line.starts_with("#:schema"));
    let lines: Vec<String> = lines.map(|line| line.replace("../assets/", "")).collect();
    format!("#:schema ./{SCHEMA_NAME}\n{}\n", lines.join("\n").trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package holds its own files only, so that the two are copies.
    #[test]
    fn what_is_written_is_what_the_repository_has() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let Ok(config) = std::fs::read_to_string(workspace.join("configs/digits-grpo.toml")) else {
            println!("skipped: init: not in the repository");
            return;
        };
        assert_eq!(CONFIG, config, "copy it to crates/flow-train/init");
        let weights = std::fs::read(workspace.join("assets/digits-dit.safetensors")).unwrap();
        assert!(WEIGHTS == weights, "copy it to crates/flow-train/init");
    }
}
