//! `completions`: a script for the shell.

use crate::arguments::Arguments;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use flow_config::Catalog;
use flow_train::Registries;

/// Prints the script.
pub fn run(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    let registries = Registries::built_in().or_failed()?;
    let catalog = registries.catalog();
    let keys = keys(&catalog);
    let mut command = with_names(Arguments::command(), &registries, &catalog, &keys);
    match shell {
        Shell::Bash => {
            // Labels of the generated script do not agree with one another for a name with a hyphen (clap issue 6421).
            let mut command = command.name("flow_train").bin_name("flow_train");
            clap_complete::generate(shell, &mut command, "flow_train", &mut script);
            let script = String::from_utf8_lossy(&script);
            terminal::print(&for_bash(&script, &keys))
        }
        _ => {
            clap_complete::generate(shell, &mut command, "flow-train", &mut script);
            terminal::print(&String::from_utf8_lossy(&script))
        }
    }
}

/// `section.key=` of every key that `--set` takes.
fn keys(catalog: &Catalog) -> Vec<String> {
    let keys = flow_config::all_keys(catalog).into_iter();
    keys.map(|key| format!("{key}=")).collect()
}

/// The command line with what only its registries know: the keys of `--set`, and what can be explained.
fn with_names(command: Command, registries: &Registries, catalog: &Catalog, keys: &[String]) -> Command {
    let explained = flow_config::all_keys(catalog)
        .into_iter()
        .chain(registries.accelerators.kinds().map(|kind| kind.name().to_owned()))
        .chain(flow_validate::all_codes().map(|known| known.code.to_owned()));
    let explained: Vec<String> = explained.collect();
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|subcommand| {
            subcommand
                .get_arguments()
                .any(|argument| argument.get_id() == "set")
        })
        .map(|subcommand| subcommand.get_name().to_owned())
        .collect();
    let mut command = command;
    for name in names {
        let keys = possible(keys.iter().cloned());
        command = command.mut_subcommand(name, |subcommand| {
            subcommand.mut_arg("set", |set| set.value_parser(keys).value_hint(ValueHint::Other))
        });
    }
    command.mut_subcommand("explain", |explain| {
        explain.mut_arg("key", |key| key.value_parser(possible(explained.into_iter())))
    })
}

/// Names to complete. Clap takes text that is never freed; the process ends with the script.
fn possible(names: impl Iterator<Item = String>) -> PossibleValuesParser {
    let names = names.map(|name| -> &'static str { name.leak() });
    PossibleValuesParser::new(names.collect::<Vec<_>>())
}

/// The script under the program's own name, with the keys once, and with files where a file is wanted: as it is generated,
/// options stand in their place.
fn for_bash(script: &str, keys: &[String]) -> String {
    const NO_OPTION: &str = "            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )\n            return 0\n            ;;";
    let files = |block: &str| {
        let options = "[[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]]";
        block.replace(options, "[[ ${cur} == -* ]]").replace(
            NO_OPTION,
            "            COMPREPLY=()\n            return 0\n            ;;",
        )
    };
    let label = "\n        flow_train__subcmd__";
    let mut blocks = script.split(label);
    let mut text = blocks.next().unwrap_or_default().to_owned();
    for block in blocks {
        let name = block.split(')').next().unwrap_or_default();
        // The words of these are names, not files.
        let named = ["list", "completions", "explain", "help", "schema", "doctor"];
        let is_named = named.iter().any(|one| name.starts_with(one));
        text.push_str(label);
        text.push_str(&if is_named { block.to_owned() } else { files(block) });
    }
    let list = keys.join(" ");
    text.replace(&list, "${keys}")
        .replacen(
            "    local i cur",
            &format!("    local keys=\"{list}\"\n    local i cur"),
            1,
        )
        .replace("default flow_train\n", "default flow-train\n")
}
