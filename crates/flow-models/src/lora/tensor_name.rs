//! What the name of a tensor in a LoRA file says.

/// What a tensor of a LoRA file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `A`, `[rank, in]`.
    Down,
    /// `B`, `[out, rank]`.
    Up,
    /// Scale times rank, one number.
    Alpha,
    /// Part of something that is no low-rank adapter of a linear layer; what it is, in words.
    Other(&'static str),
}

/// Endings of the factors: `peft` and diffusers, `kohya-ss`, older diffusers.
const FACTORS: [(&str, Role); 7] = [
    (".lora_A.weight", Role::Down),
    (".lora_B.weight", Role::Up),
    (".lora_down.weight", Role::Down),
    (".lora_up.weight", Role::Up),
    (".lora.down.weight", Role::Down),
    (".lora.up.weight", Role::Up),
    (".alpha", Role::Alpha),
];

const DORA: &str = "weight-decomposed adapters (DoRA)";
const BIASES: &str = "a bias of an adapter (`lora_bias`)";
const DIFFERENCE: &str = "the difference of a whole weight";

/// Endings, or parts of them, of what other methods store.
const OTHERS: [(&str, &str); 11] = [
    (".lora_magnitude_vector", DORA),
    (".dora_scale", DORA),
    (".hada_w", "Hadamard adapters (LoHa)"),
    (".lokr_w", "Kronecker adapters (LoKr)"),
    (".lora_mid.", "an adapter of a convolution"),
    (".oft_", "orthogonal adapters (OFT)"),
    (".boft_", "orthogonal adapters (BOFT)"),
    (".lora_embedding_", "an adapter of an embedding table"),
    (".lora_A.bias", BIASES),
    (".lora_B.bias", BIASES),
    (".modules_to_save.", "a module that was trained as a whole"),
];

/// What `name` is of, and the layer that it belongs to. `None`: no tensor of an adapter.
pub(super) fn parse(name: &str) -> Option<(&str, Role)> {
    for (ending, role) in FACTORS {
        if let Some(layer) = name.strip_suffix(ending) {
            return Some((layer, role));
        }
    }
    // `peft` puts the adapter's own name between: `lora_A.default.weight`.
    if let Some(inner) = name.strip_suffix(".weight") {
        for (middle, role) in [(".lora_A.", Role::Down), (".lora_B.", Role::Up)] {
            if let Some((layer, adapter)) = inner.rsplit_once(middle)
                && !adapter.is_empty()
                && !adapter.contains('.')
            {
                return Some((layer, role));
            }
        }
    }
    for ending in [".diff", ".diff_b"] {
        if let Some(layer) = name.strip_suffix(ending) {
            return Some((layer, Role::Other(DIFFERENCE)));
        }
    }
    OTHERS.iter().find_map(|(part, what)| {
        let at = name.rfind(part)?;
        Some((&name[..at], Role::Other(what)))
    })
}

/// The adapter's own name within `name`, if there is one: `default` of `lora_A.default.weight`.
pub(super) fn adapter_of(name: &str) -> Option<&str> {
    let inner = name.strip_suffix(".weight")?;
    let (_, adapter) = inner
        .rsplit_once(".lora_A.")
        .or_else(|| inner.rsplit_once(".lora_B."))?;
    (!adapter.is_empty() && !adapter.contains('.')).then_some(adapter)
}

/// Whether a tensor belongs to a text encoder, which files of pipelines may adapt besides.
pub(super) fn is_of_text_encoder(name: &str) -> bool {
    [
        "text_encoder",
        "lora_te",
        "te1.",
        "te2.",
        "te3.",
        "base_model.model.text_model.",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_found_under_every_spelling() {
        for (name, role) in [
            ("a.to_q.lora_A.weight", Role::Down),
            ("a.to_q.lora_B.default.weight", Role::Up),
            ("a.to_q.lora_A.my-style_2.weight", Role::Down),
            ("a.to_q.lora_down.weight", Role::Down),
            ("a.to_q.lora.up.weight", Role::Up),
            ("a.to_q.alpha", Role::Alpha),
        ] {
            assert_eq!(parse(name), Some(("a.to_q", role)), "{name}");
        }
        assert_eq!(adapter_of("a.lora_A.default.weight"), Some("default"));
        assert_eq!(adapter_of("a.lora_A.weight"), None);
        assert_eq!(parse("a.to_q.weight"), None);
        assert_eq!(parse("norm.alpha_scale"), None);
        assert_eq!(parse("model.diffusion_model.a.weight"), None);
    }

    #[test]
    fn what_other_methods_store_is_named() {
        for (name, what) in [
            ("a.to_q.lora_magnitude_vector.default.weight", "DoRA"),
            ("lora_unet_a.hada_w1_a", "LoHa"),
            ("lora_unet_a.lokr_w2", "LoKr"),
            ("diffusion_model.a.diff_b", "whole weight"),
            ("a.lora_B.bias", "lora_bias"),
        ] {
            let Some((_, Role::Other(found))) = parse(name) else {
                panic!("{name} is taken for a factor");
            };
            assert!(found.contains(what), "{name}: {found}");
        }
    }
}
