//! One thread of a kernel on the host: what the compiler made of a kernel, executed without a GPU.
//!
//! PTX with integers, f64 and rounding to f32, by the definitions of the PTX ISA (9.7.1 to 9.7.9); every one of these gives the
//! same bits on the GPU. Kernels whose threads depend on one another, and arithmetic in f32, are not for this.

use crate::emulator::{CannotExecute, list, split};
use std::collections::HashMap;

/// A kernel's parameters, in order.
#[derive(Clone, Debug)]
pub enum Parameter {
    /// Where a buffer begins.
    Address(u64),
    /// A structure of words.
    Words(Vec<u32>),
}

/// Which thread: of a grid and blocks in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// `%ctaid.x`.
    pub block: u32,
    /// `%tid.x`.
    pub thread: u32,
}

/// Global memory, words of 32 bits by address. What was not written cannot be read.
pub type Memory = HashMap<u64, u32>;

/// A line of a kernel.
#[derive(Clone, Debug)]
struct Instruction {
    /// Register, and whether it must be set.
    only_if: Option<(String, bool)>,
    name: String,
    operands: Vec<String>,
    text: String,
}

/// A kernel's instructions.
#[derive(Clone, Debug)]
pub struct Kernel {
    parameters: Vec<String>,
    instructions: Vec<Instruction>,
    labels: HashMap<String, usize>,
}

impl Kernel {
    /// The one kernel of a PTX module. `None` if there is none.
    pub fn read(ptx: &str) -> Option<Self> {
        let (_, kernel) = ptx.split_once(".entry")?;
        let (head, body) = kernel.split_once('{')?;
        let parameters = head.split(".param").skip(1).filter_map(|parameter| {
            let name = parameter.split([',', ')', '[']).next()?;
            Some(name.split_whitespace().last()?.to_owned())
        });
        let mut of = Self {
            parameters: parameters.collect(),
            instructions: Vec::new(),
            labels: HashMap::new(),
        };
        for line in body.lines() {
            let line = line.split("//").next().unwrap_or_default().trim();
            if let Some(label) = line.strip_suffix(':') {
                of.labels.insert(label.into(), of.instructions.len());
                continue;
            }
            // A block in braces within a line declares registers of its own, which the next such block may declare again. Nothing
            // outside of it reads them.
            let line = match line.starts_with("{ ") {
                true => line.trim_start_matches("{ ").trim_end_matches('}'),
                false => line,
            };
            for text in line.split(';').map(str::trim) {
                if !matches!(text, "" | "{" | "}") && !text.starts_with('.') {
                    of.instructions.push(Instruction::read(text));
                }
            }
        }
        Some(of)
    }

    /// Runs the thread at `place`; what it stores goes to `memory`.
    ///
    /// # Errors
    /// [`CannotExecute`] for what is not known here, and what reads a register or memory that was not written.
    pub fn run(
        &self,
        parameters: &[Parameter],
        place: Place,
        memory: &mut Memory,
    ) -> Result<(), CannotExecute> {
        let mut thread = Thread {
            kernel: self,
            parameters,
            place,
            registers: HashMap::new(),
        };
        let mut next = 0;
        while let Some(instruction) = self.instructions.get(next) {
            next += 1;
            let went = thread.step(instruction, memory);
            let went = went.map_err(|why| CannotExecute {
                instruction: instruction.text.clone(),
                why,
            })?;
            match went {
                Then::Next => {}
                Then::To(at) => next = at,
                Then::Return => break,
            }
        }
        Ok(())
    }
}

impl Instruction {
    fn read(text: &str) -> Self {
        let (only_if, rest) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (register, rest) = guarded.split_once(char::is_whitespace).unwrap_or((guarded, ""));
                let name = register.trim_start_matches('!');
                (Some((name.to_owned(), name == register)), rest.trim())
            }
            None => (None, text),
        };
        let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Self {
            only_if,
            name: name.into(),
            operands: split(operands).into_iter().map(str::to_owned).collect(),
            text: text.into(),
        }
    }
}

/// Where a thread goes on.
enum Then {
    Next,
    To(usize),
    Return,
}

struct Thread<'a> {
    kernel: &'a Kernel,
    parameters: &'a [Parameter],
    place: Place,
    registers: HashMap<&'a str, u64>,
}

impl<'a> Thread<'a> {
    fn step(&mut self, instruction: &'a Instruction, memory: &mut Memory) -> Result<Then, String> {
        if let Some((register, wanted)) = &instruction.only_if
            && (self.value(register)? != 0) != *wanted
        {
            return Ok(Then::Next);
        }
        let operands: Vec<&'a str> = instruction.operands.iter().map(String::as_str).collect();
        match (&*instruction.name, &operands[..]) {
            ("ret", _) => return Ok(Then::Return),
            ("bra" | "bra.uni", [label]) => {
                let at = self.kernel.labels.get(*label);
                return at.map(|at| Then::To(*at)).ok_or_else(|| "no such label".into());
            }
            ("ld.global.nc.u32" | "ld.global.u32", [to, from]) => {
                let at = self.address(from)?;
                let word = memory.get(&at).ok_or("memory that was not written")?;
                self.registers.insert(to, u64::from(*word));
            }
            ("st.global.f32" | "st.global.u32" | "st.global.v2.f32" | "st.global.v4.f32", [to, from]) => {
                let at = self.address(to)?;
                for (number, register) in list(from).into_iter().enumerate() {
                    memory.insert(at + 4 * number as u64, self.value(register)? as u32);
                }
            }
            ("mov.b64", [to, from]) if to.starts_with('{') => {
                let [low, high] = list(to)[..] else {
                    return Err("two halves".into());
                };
                let value = self.value(from)?;
                self.registers.insert(low, value & 0xFFFF_FFFF);
                self.registers.insert(high, value >> 32);
            }
            ("mov.b64", [to, from]) if from.starts_with('{') => {
                let [low, high] = list(from)[..] else {
                    return Err("two halves".into());
                };
                let value = self.value(low)? & 0xFFFF_FFFF | self.value(high)? << 32;
                self.registers.insert(to, value);
            }
            (load @ ("ld.param.u32" | "ld.param.u64"), [to, from]) => {
                let value = self.parameter(from, load.ends_with("u64"))?;
                self.registers.insert(to, value);
            }
            (name, [to, from @ ..]) => {
                let from: Vec<u64> = from
                    .iter()
                    .map(|name| self.value(name))
                    .collect::<Result<_, _>>()?;
                let value = computed(name, &from).ok_or("not known here")?;
                self.registers.insert(to, value);
            }
            (_, []) => return Err("not known here".into()),
        }
        Ok(Then::Next)
    }

    /// A register, a constant, or where a parameter is.
    fn value(&self, name: &str) -> Result<u64, String> {
        if let Some(value) = self.registers.get(name) {
            return Ok(*value);
        }
        if let Some(number) = self.kernel.parameters.iter().position(|known| known == name) {
            return Ok((number as u64) << PARAMETER);
        }
        let known = match name {
            "%tid.x" => Some(u64::from(self.place.thread)),
            "%ctaid.x" => Some(u64::from(self.place.block)),
            "%ctaid.y" | "%ctaid.z" => Some(0),
            // Only multiplied by a place in another dimension.
            "%nctaid.x" | "%nctaid.y" | "%nctaid.z" => Some(1),
            _ => None,
        };
        let bits = |name: &str| u64::from_str_radix(name, 16).ok();
        let constant = || match (name.strip_prefix("0d"), name.strip_prefix("0f")) {
            (Some(digits), _) | (_, Some(digits)) => bits(digits),
            _ => name.parse::<i64>().ok().map(|value| value as u64),
        };
        known
            .or_else(constant)
            .ok_or_else(|| format!("{name} was not written"))
    }

    /// `[register+offset]`, `[parameter+offset]`.
    fn address(&self, operand: &str) -> Result<u64, String> {
        let operand = operand.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = operand.split_once('+').unwrap_or((operand, "0"));
        let offset: u64 = offset.parse().map_err(|_| "no offset")?;
        Ok(self.value(base)? + offset)
    }

    fn parameter(&self, operand: &str, is_wide: bool) -> Result<u64, String> {
        let at = self.address(operand)?;
        match (self.parameters.get((at >> PARAMETER) as usize), is_wide) {
            (Some(Parameter::Address(address)), true) => Ok(*address),
            (Some(Parameter::Words(words)), false) => {
                let word = words.get((at & ((1 << PARAMETER) - 1)) as usize / 4);
                word.map(|word| u64::from(*word))
                    .ok_or_else(|| "beyond its parameter".into())
            }
            _ => Err("no such parameter of this width".into()),
        }
    }
}

/// Bits of an offset within a parameter.
const PARAMETER: u32 = 32;

/// What an instruction without other effects makes of its operands.
fn computed(name: &str, from: &[u64]) -> Option<u64> {
    let word = |at: usize| from[at] as u32;
    let wide = |at: usize| f64::from_bits(from[at]);
    let value = match (name, from.len()) {
        ("mov.u32" | "mov.u64" | "mov.b32" | "mov.b64" | "mov.f64" | "cvta.to.global.u64", 1) => from[0],
        ("add.s32", 2) => word(0).wrapping_add(word(1)).into(),
        ("sub.s32", 2) => word(0).wrapping_sub(word(1)).into(),
        ("add.s64", 2) => from[0].wrapping_add(from[1]),
        ("mul.lo.s32", 2) => word(0).wrapping_mul(word(1)).into(),
        ("mad.lo.s32", 3) => word(0).wrapping_mul(word(1)).wrapping_add(word(2)).into(),
        ("mul.hi.u32", 2) => (u64::from(word(0)) * u64::from(word(1))) >> 32,
        ("mul.wide.u32", 2) => u64::from(word(0)) * u64::from(word(1)),
        ("div.u32", 2) => word(0).checked_div(word(1))?.into(),
        ("rem.u32", 2) => word(0).checked_rem(word(1))?.into(),
        ("and.b32", 2) => (word(0) & word(1)).into(),
        ("or.b32", 2) => (word(0) | word(1)).into(),
        ("xor.b32", 2) => (word(0) ^ word(1)).into(),
        ("and.pred", 2) => from[0] & from[1],
        ("or.pred", 2) => from[0] | from[1],
        ("shl.b32", 2) => word(0).checked_shl(word(1)).unwrap_or(0).into(),
        ("shr.u32", 2) => word(0).checked_shr(word(1)).unwrap_or(0).into(),
        ("selp.b32" | "selp.u32" | "selp.s32" | "selp.f64" | "selp.f32" | "selp.b64", 3) => match from[2] {
            0 => from[1],
            _ => from[0],
        },
        ("add.rn.f64", 2) => (wide(0) + wide(1)).to_bits(),
        ("sub.rn.f64", 2) => (wide(0) - wide(1)).to_bits(),
        ("mul.rn.f64", 2) => (wide(0) * wide(1)).to_bits(),
        ("div.rn.f64", 2) => (wide(0) / wide(1)).to_bits(),
        ("sqrt.rn.f64", 1) => wide(0).sqrt().to_bits(),
        ("fma.rn.f64", 3) => wide(0).mul_add(wide(1), wide(2)).to_bits(),
        ("cvt.rn.f64.u32", 1) => f64::from(word(0)).to_bits(),
        ("cvt.rn.f32.f64", 1) => (wide(0) as f32).to_bits().into(),
        (compare, 2) => {
            let (compare, of) = compare.strip_prefix("setp.")?.split_once('.')?;
            let order = match of {
                "u32" | "b32" => word(0).cmp(&word(1)),
                "s32" => (word(0) as i32).cmp(&(word(1) as i32)),
                _ => return None,
            };
            let holds = match compare {
                "eq" => order.is_eq(),
                "ne" => order.is_ne(),
                "lt" => order.is_lt(),
                "le" => order.is_le(),
                "gt" => order.is_gt(),
                "ge" => order.is_ge(),
                _ => return None,
            };
            holds.into()
        }
        _ => return None,
    };
    Some(value)
}
