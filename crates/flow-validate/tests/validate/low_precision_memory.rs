//! What weights and gradients in low precision take of the memory.

use super::*;
use flow_core::{LowPrecisionCompute, LowPrecisionFormat, LowPrecisionRule};

#[test]
fn frozen_weights_in_low_precision_take_their_codes_and_scales() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.matrix("embed.weight", [4, 5], Init::Zeros);
    let mut blocks = builder.under("blocks");
    let weight = blocks.under(0).matrix("to_q.weight", [10, 66], Init::Zeros);
    layout.add_adapter(weight, 1, 1.0).expect("the first adapter");
    let spec = ModelSpec {
        stacks: vec![("blocks".into(), 1)],
        ..spec()
    };
    let load = Load::of(&config(""), &CATALOG);
    let plain = MemoryEstimate::new(&layout, &spec, 76, &load);
    assert_eq!(plain.weights, 4.0 * (76.0 + 20.0 + 660.0));
    // 10 rows of 66 values: 17 words of four codes or 9 of eight, and a word of one scale or of two scales.
    for (format, words_per_row, bits) in [
        (LowPrecisionFormat::Int8, 17 + 1, "8.73 bits"),
        (LowPrecisionFormat::Nf4, 9 + 1, "4.85 bits"),
    ] {
        let rule = LowPrecisionRule {
            format,
            compute: LowPrecisionCompute::Storage,
            keep: Vec::new(),
        };
        let load = load.with_low_precision(Some(&rule), &layout, &spec);
        let stored = MemoryEstimate::new(&layout, &spec, 76, &load);
        // 76 values of adapters and 20 of the embedding in f32.
        let weights = 4.0 * (76.0 + 20.0 + 10.0 * f64::from(words_per_row));
        assert_eq!(stored.loading, weights, "{format}");
        assert_eq!(
            stored.weights,
            weights + 4.0 * 660.0,
            "{format}, with the matrix widened"
        );
        assert_eq!(stored.activations, plain.activations, "{format}");
        let model = Trained {
            layout: &layout,
            spec: &spec,
            values: 76,
            load: &load,
        };
        let table = MemoryTable::new(&config(""), model, None, None);
        let row = table.rows.iter().find(|row| row.part == "model, low precision");
        let said = row.map(|row| row.what.as_str()).unwrap_or_default();
        assert!(said.contains(bits), "{format}: {said}");
        assert_eq!(stored.products, 0.0, "{format}");
    }
    let rule = LowPrecisionRule {
        format: LowPrecisionFormat::Fp8,
        compute: LowPrecisionCompute::Fp8,
        keep: Vec::new(),
    };
    let load = load.with_low_precision(Some(&rule), &layout, &spec);
    let fp8 = MemoryEstimate::new(&layout, &spec, 76, &load);
    assert_eq!(fp8.weights, 4.0 * (76.0 + 20.0 + 10.0 * 18.0 + 660.0));
    // Of every token 66 codes in 80 bytes, a scale, and the codes in f32.
    let tokens = (spec.tokens * load.rows) as f64;
    assert_eq!(fp8.products, tokens * (80.0 + 4.0 + 4.0 * 66.0));
    assert_eq!(fp8.certain(), plain.certain() - plain.weights + fp8.weights);
    let model = Trained {
        layout: &layout,
        spec: &spec,
        values: 76,
        load: &load,
    };
    let table = MemoryTable::new(&config(""), model, None, None);
    let row = table.rows.iter().find(|row| row.part == "products in FP8");
    assert_eq!(row.map(|row| row.bytes), Some(fp8.products));
}

#[test]
fn trained_weights_that_are_multiplied_in_fp8_take_the_codes_of_the_largest() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    for (block, shape) in [[10, 66], [7, 20]].into_iter().enumerate() {
        let mut blocks = builder.under("blocks");
        blocks.under(block).matrix("to_q.weight", shape, Init::Zeros);
    }
    let spec = ModelSpec {
        stacks: vec![("blocks".into(), 2)],
        ..spec()
    };
    let rule = |compute| LowPrecisionRule {
        format: LowPrecisionFormat::Fp8,
        compute,
        keep: Vec::new(),
    };
    let plain = Load::of(&config(""), &CATALOG);
    let load = |compute| plain.with_low_precision(Some(&rule(compute)), &layout, &spec);
    assert_eq!(
        load(LowPrecisionCompute::Storage).low_precision,
        LowPrecisionLoad::default(),
        "nothing is frozen"
    );
    let of = |load: &Load| MemoryEstimate::new(&layout, &spec, 800, load);
    let (without, with) = (of(&plain), of(&load(LowPrecisionCompute::Fp8)));
    assert_eq!(with.weights, without.weights);
    // Of every token, and of 10 rows of the matrix, 66 codes in 80 bytes, a scale, and the codes in f32.
    let rows = (spec.tokens * plain.rows) as f64 + 10.0;
    assert_eq!(with.products, rows * (80.0 + 4.0 + 4.0 * 66.0));
    // Gradients read codes of the matrix's 66 columns of 10 values in 16 bytes, and nothing is stored a second time.
    let load = load(LowPrecisionCompute::Fp8WithDataGradient);
    let gradients = of(&load);
    assert_eq!(load.low_precision.transposed, 0);
    assert_eq!(gradients.weights, without.weights);
    let columns = 66.0 * (16.0 + 4.0 + 4.0 * 10.0);
    let tokens = (spec.tokens * plain.rows) as f64;
    assert_eq!(gradients.products, tokens * (80.0 + 4.0 + 4.0 * 66.0) + columns);
}

#[test]
fn gradients_in_fp8_take_a_second_copy_of_the_weights_and_codes_of_the_wider_side() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    let mut blocks = builder.under("blocks");
    let weight = blocks.under(0).matrix("to_q.weight", [130, 66], Init::Zeros);
    layout.add_adapter(weight, 1, 1.0).expect("the first adapter");
    let spec = ModelSpec {
        stacks: vec![("blocks".into(), 1)],
        ..spec()
    };
    let [one, two] = [LowPrecisionCompute::Fp8, LowPrecisionCompute::Fp8WithDataGradient].map(|compute| {
        let rule = LowPrecisionRule {
            format: LowPrecisionFormat::Fp8,
            compute,
            keep: Vec::new(),
        };
        Load::of(&config(""), &CATALOG).with_low_precision(Some(&rule), &layout, &spec)
    });
    // 130 rows of 66 codes in 17 words and of a scale fill 2340 words, and the copy begins at a multiple of 64: 66 rows of 130 codes in 33
    // words and of a scale.
    assert_eq!(one.low_precision.bytes, 4 * 2340);
    assert_eq!(one.low_precision.transposed, 0);
    assert_eq!(two.low_precision.transposed, 4 * 66 * 34);
    assert_eq!(two.low_precision.bytes, 4 * (2368 + 66 * 34));
    let [of_one, of_two] = [&one, &two].map(|load| MemoryEstimate::new(&layout, &spec, 196, load));
    assert_eq!(
        of_two.weights - of_one.weights,
        (two.low_precision.bytes - one.low_precision.bytes) as f64
    );
    // Of every token 130 codes in 144 bytes, a scale, and the codes in f32.
    let tokens = (spec.tokens * two.rows) as f64;
    assert_eq!(of_two.products, tokens * (144.0 + 4.0 + 4.0 * 130.0));
    let said = |load: &Load| {
        let model = Trained {
            layout: &layout,
            spec: &spec,
            values: 196,
            load,
        };
        let table = MemoryTable::new(&config(""), model, None, None);
        let mut rows = table.rows.into_iter();
        rows.find(|row| row.part == "model, low precision")
            .map(|row| row.what)
            .unwrap_or_default()
    };
    assert!(
        said(&two).contains("8.37 of them for a transposed copy"),
        "{}",
        said(&two)
    );
    assert!(!said(&one).contains("transposed"), "{}", said(&one));
}
