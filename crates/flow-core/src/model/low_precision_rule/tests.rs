//! Which weights of a model are stored in low precision.

use super::LowPrecisionRule;
use crate::low_precision::{LowPrecisionCompute, LowPrecisionFormat};
use crate::model::ModelSpec;
use crate::params::{Init, LayoutBuilder, ParamLayout};

/// A model of two blocks with an adapter, and layers before and behind them.
fn layout(has_adapter: bool) -> (ParamLayout, ModelSpec) {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.matrix("embed.weight", [24, 32], Init::Zeros);
    let mut first = None;
    for block in 0..2 {
        let mut blocks = builder.under("blocks");
        let mut part = blocks.under(block);
        let to_q = part.matrix("attn.to_q.weight", [24, 24], Init::Zeros);
        part.matrix("mlp.up.weight", [40, 24], Init::Zeros);
        part.matrix("narrow.weight", [24, 15], Init::Zeros);
        part.param("table.weight", [24, 24], Init::Zeros);
        part.param("mlp.up.bias", [40], Init::Zeros);
        first.get_or_insert(to_q);
    }
    builder.matrix("blocks_end.weight", [24, 24], Init::Zeros);
    if has_adapter {
        let weight = first.expect("a block");
        layout.add_adapter(weight, 2, 2.0).expect("the first adapter");
    }
    let spec = ModelSpec {
        stacks: vec![("blocks".into(), 2)],
        ..ModelSpec::default()
    };
    (layout, spec)
}

#[test]
fn large_frozen_matrices_of_blocks_are_stored_so_but_for_those_that_are_kept() {
    let names = |keep: &[&str], has_adapter| -> Vec<String> {
        let (layout, spec) = layout(has_adapter);
        let rule = LowPrecisionRule {
            format: LowPrecisionFormat::Fp8,
            compute: LowPrecisionCompute::Fp8,
            keep: keep.iter().map(|pattern| (*pattern).to_owned()).collect(),
        };
        let forms = rule.select(&layout, &spec);
        let chosen = layout.specs().iter().zip(forms.iter());
        chosen
            .filter_map(|(weight, form)| {
                let form = (*form)?;
                assert_eq!(weight.shape, [form.rows, form.columns]);
                assert_eq!(form.compute, rule.compute);
                Some(weight.name.clone())
            })
            .collect()
    };
    let all = [
        "blocks.0.attn.to_q.weight",
        "blocks.0.mlp.up.weight",
        "blocks.1.attn.to_q.weight",
        "blocks.1.mlp.up.weight",
    ];
    assert_eq!(names(&[], true), all);
    assert_eq!(names(&["mlp.*"], true), [all[0], all[2]]);
    assert_eq!(names(&["blocks.0.*"], true), all[2..]);
    assert!(names(&[], false).is_empty(), "all is trained");
    let trained = |compute, keep: &str, has_adapter| {
        let (layout, spec) = layout(has_adapter);
        let rule = LowPrecisionRule {
            format: LowPrecisionFormat::Fp8,
            compute,
            keep: vec![keep.to_owned()],
        };
        let forms = rule.select_trained(&layout, &spec);
        forms
            .iter()
            .flatten()
            .map(|form| [form.rows, form.columns])
            .collect::<Vec<_>>()
    };
    for products in [LowPrecisionCompute::Fp8, LowPrecisionCompute::Fp8WithDataGradient] {
        assert_eq!(
            trained(products, "blocks.0.*", false),
            [[24, 24], [40, 24]],
            "{products:?}"
        );
        assert!(
            trained(products, "blocks.0.*", true).is_empty(),
            "{products:?}: these are frozen"
        );
    }
    assert!(trained(LowPrecisionCompute::Storage, "blocks.0.*", false).is_empty());

    let (layout, spec) = layout(true);
    let rule = LowPrecisionRule {
        format: LowPrecisionFormat::Int8,
        compute: LowPrecisionCompute::Storage,
        keep: ["attn.to_q", "embed", "mpl.*"].map(str::to_owned).to_vec(),
    };
    assert_eq!(rule.idle_patterns(&layout, &spec), ["embed", "mpl.*"]);
}
