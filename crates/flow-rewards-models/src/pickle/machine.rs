//! The pickle machine: opcodes that build data, and names that stand for PyTorch's tensors. It has no opcode that calls anything.

/// The names that mean something: what makes a tensor, what wraps one as a parameter, an ordered dictionary, and storages.
const MAKE_TENSOR: &str = "torch._utils._rebuild_tensor_v2";
const MAKE_PARAMETER: &str = "torch._utils._rebuild_parameter";
const DICTIONARY: &str = "collections.OrderedDict";
const STORAGE: &str = "torch.";
const STORAGE_ENDING: &str = "Storage";

/// A value. Containers are in the machine's list, so that a value that is deep within others takes no deep calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'p> {
    /// `None`, a truth value, a number with a fraction: nothing that a tensor needs.
    Other,
    /// A whole number.
    Int(i64),
    /// A text.
    Text(&'p str),
    /// A list, tuple or dictionary, by its place.
    Container(usize),
    /// A name.
    Name(Name<'p>),
    /// A tensor, by its place.
    Tensor(usize),
    /// A storage.
    Storage(Storage<'p>),
}

/// A name that has a meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Name<'p> {
    MakeTensor,
    MakeParameter,
    Dictionary,
    /// A storage of this sort: `Float`, `Half`.
    Storage(&'p str),
}

/// Values of one precision: an entry of the zip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage<'p> {
    /// `Float`, `Half`.
    pub sort: &'p str,
    /// The entry's name, below `data`.
    pub key: &'p str,
}

/// A tensor as the pickle says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'p> {
    pub storage: Storage<'p>,
    /// First value of the storage.
    pub offset: i64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
}

/// Items of a list or tuple, or keys and values of a dictionary in turn.
type Items<'p> = Vec<Value<'p>>;

/// What a pickle built.
#[derive(Debug, Default)]
pub struct Built<'p> {
    pub containers: Vec<Items<'p>>,
    pub tensors: Vec<Tensor<'p>>,
}

struct Machine<'p> {
    rest: &'p [u8],
    stack: Vec<Value<'p>>,
    marks: Vec<usize>,
    memo: Vec<Option<Value<'p>>>,
    built: Built<'p>,
}

/// Runs the pickle: what it is, and all that was built.
pub fn run(pickle: &[u8]) -> Result<(Value<'_>, Built<'_>), String> {
    let mut machine = Machine {
        rest: pickle,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        built: Built::default(),
    };
    loop {
        let at = pickle.len() - machine.rest.len();
        let [code] = *machine.take(1)? else {
            return Err(CUT.into());
        };
        if code == b'.' {
            let value = machine.pop()?;
            return Ok((value, machine.built));
        }
        machine
            .step(code)
            .map_err(|problem| format!("{problem} (byte {at} of its pickle)"))?;
    }
}

const CUT: &str = "its pickle is cut off or damaged";

impl<'p> Machine<'p> {
    fn take(&mut self, count: usize) -> Result<&'p [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        let bytes = self.take(bytes)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize, String> {
        Ok(usize::try_from(self.number(bytes)?).map_err(|_| CUT)?)
    }

    fn text(&mut self, length: usize) -> Result<Value<'p>, String> {
        let text = std::str::from_utf8(self.take(length)?);
        Ok(Value::Text(
            text.map_err(|_| "a text in its pickle is not UTF-8")?,
        ))
    }

    fn line(&mut self) -> Result<&'p str, String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or(CUT)?;
        let line = std::str::from_utf8(self.take(end)?).map_err(|_| CUT)?;
        self.take(1)?;
        Ok(line)
    }

    fn pop(&mut self) -> Result<Value<'p>, String> {
        let below = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= below {
            return Err(CUT.into());
        }
        self.stack.pop().ok_or_else(|| CUT.into())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value<'p>>, String> {
        let mark = self.marks.pop().ok_or(CUT)?;
        Ok(self.stack.split_off(mark))
    }

    fn push_container(&mut self, items: Vec<Value<'p>>) {
        self.stack.push(Value::Container(self.built.containers.len()));
        self.built.containers.push(items);
    }

    fn push_tuple(&mut self, count: usize) -> Result<(), String> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push_container(items);
        Ok(())
    }

    /// Adds items to the container that is on top now.
    fn extend(&mut self, items: Vec<Value<'p>>) -> Result<(), String> {
        match self.stack.last() {
            Some(Value::Container(place)) => self.built.containers[*place].extend(items),
            _ => return Err(CUT.into()),
        }
        Ok(())
    }

    fn remember(&mut self, place: usize) -> Result<(), String> {
        // No more than one value for each byte.
        if place > self.memo.len() + self.rest.len() {
            return Err(CUT.into());
        }
        if place >= self.memo.len() {
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = self.stack.last().copied();
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), String> {
        let value = self.memo.get(place).copied().flatten().ok_or(CUT)?;
        self.stack.push(value);
        Ok(())
    }

    fn step(&mut self, code: u8) -> Result<(), String> {
        match code {
            // PROTO, FRAME.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'}' | b']' | b')' => self.push_container(Vec::new()),
            b't' | b'l' | b'd' => {
                let items = self.pop_to_mark()?;
                self.push_container(items);
            }
            0x85..=0x87 => self.push_tuple(usize::from(code - 0x84))?,
            // APPEND, SETITEM, APPENDS, SETITEMS.
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend(vec![key, value])?;
            }
            b'e' | b'u' => {
                let items = self.pop_to_mark()?;
                self.extend(items)?;
            }
            b'N' | 0x88 | 0x89 => self.stack.push(Value::Other),
            b'0' => drop(self.pop()?),
            b'G' => {
                self.take(8)?;
                self.stack.push(Value::Other);
            }
            b'J' | b'K' | b'M' | 0x8a => self.push_number(code)?,
            b'X' | 0x8c | 0x8d => {
                let width = match code {
                    0x8c => 1,
                    0x8d => 8,
                    _ => 4,
                };
                let length = self.length(width)?;
                let text = self.text(length)?;
                self.stack.push(text);
            }
            b'q' | b'r' | 0x94 => {
                let place = match code {
                    b'q' => self.length(1)?,
                    b'r' => self.length(4)?,
                    _ => self.memo.len(),
                };
                self.remember(place)?;
            }
            b'h' | b'j' => {
                let place = self.length(if code == b'h' { 1 } else { 4 })?;
                self.recall(place)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_name(module, name)?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.push_name(module, name)?,
                _ => return Err(CUT.into()),
            },
            b'Q' => self.push_storage()?,
            b'R' => self.make()?,
            // BUILD: attributes of an ordered dictionary, such as the `_metadata` of a state dict. They are no tensors.
            b'b' => drop(self.pop()?),
            _ => {
                return Err(format!(
                    "its pickle has the opcode {code:#04x}, which files of weights do not need"
                ));
            }
        }
        Ok(())
    }

    fn push_number(&mut self, code: u8) -> Result<(), String> {
        let number = match code {
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            b'J' => i64::from(self.number(4)? as u32 as i32),
            _ => {
                let length = self.length(1)?;
                if length > 8 {
                    return Err("its pickle has a number of more than 64 bits".into());
                }
                // Two's complement, as short as it goes.
                let value = self.number(length)?;
                let unused = 64 - 8 * length as u32;
                match length {
                    0 => 0,
                    _ => ((value << unused) as i64) >> unused,
                }
            }
        };
        self.stack.push(Value::Int(number));
        Ok(())
    }

    fn push_name(&mut self, module: &'p str, name: &'p str) -> Result<(), String> {
        let whole = format!("{module}.{name}");
        let meaning = match whole.as_str() {
            MAKE_TENSOR => Name::MakeTensor,
            MAKE_PARAMETER => Name::MakeParameter,
            DICTIONARY => Name::Dictionary,
            _ => match name.strip_suffix(STORAGE_ENDING) {
                Some(sort) if format!("{module}.") == STORAGE => Name::Storage(sort),
                _ => {
                    return Err(format!(
                        "its pickle names `{}`, which no file of weights needs, and which is not run here",
                        whole.escape_debug()
                    ));
                }
            },
        };
        self.stack.push(Value::Name(meaning));
        Ok(())
    }

    /// `("storage", SORT, KEY, DEVICE, COUNT)` on the stack becomes a storage.
    fn push_storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let items = self.items(id)?;
        let [
            Value::Text("storage"),
            Value::Name(Name::Storage(sort)),
            Value::Text(key),
            ..,
        ] = items
        else {
            return Err("its pickle has a storage that PyTorch does not write".into());
        };
        let storage = Storage { sort, key };
        self.stack.push(Value::Storage(storage));
        Ok(())
    }

    fn items(&self, value: Value<'p>) -> Result<&[Value<'p>], String> {
        match value {
            Value::Container(place) => Ok(&self.built.containers[place]),
            _ => Err(CUT.into()),
        }
    }

    /// A name with arguments becomes what it makes.
    fn make(&mut self) -> Result<(), String> {
        let (arguments, name) = (self.pop()?, self.pop()?);
        let arguments = self.items(arguments)?;
        match (name, arguments) {
            (Value::Name(Name::Dictionary), []) => self.push_container(Vec::new()),
            (Value::Name(Name::MakeParameter), [tensor @ Value::Tensor(_), ..]) => {
                let tensor = *tensor;
                self.stack.push(tensor);
            }
            (
                Value::Name(Name::MakeTensor),
                [Value::Storage(storage), Value::Int(offset), shape, strides, ..],
            ) => {
                let tensor = Tensor {
                    storage: *storage,
                    offset: *offset,
                    shape: self.numbers(*shape)?,
                    strides: self.numbers(*strides)?,
                };
                self.stack.push(Value::Tensor(self.built.tensors.len()));
                self.built.tensors.push(tensor);
            }
            _ => return Err("its pickle makes something that is no tensor of PyTorch's".into()),
        }
        Ok(())
    }

    fn numbers(&self, value: Value<'p>) -> Result<Vec<i64>, String> {
        let items = self.items(value)?.iter();
        let number = |value: &Value<'p>| match value {
            Value::Int(number) => Ok(*number),
            _ => Err(CUT.to_owned()),
        };
        items.map(number).collect()
    }
}
