//! Presets: named sets of values that a config can start from with `preset = "NAME"`.

/// A preset: a config fragment with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// What `preset = "…"` calls it.
    pub name: &'static str,
    /// Its TOML text. The comment at its head says what it is for.
    pub text: &'static str,
}

impl Preset {
    /// What it is for: the comment at the head of its text.
    pub fn description(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("# "));
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// Every preset, sorted by name.
pub fn presets() -> &'static [Preset] {
    macro_rules! preset {
        ($name:literal) => {
            Preset {
                name: $name,
                text: include_str!(concat!("../presets/", $name, ".toml")),
            }
        };
    }
    const PRESETS: &[Preset] = &[
        preset!("digits-dit"),
        preset!("digits-moe-dit"),
        preset!("flow-factory-grpo"),
        preset!("flow-factory-nft"),
        preset!("shapes-dit"),
    ];
    PRESETS
}
