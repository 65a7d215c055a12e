//! JSON as the API server sends it, without `managedFields`: half of many an object, and read by nobody here. Pages of
//! lists are taken object by object, so that no page stands there as a tree.
//!
//! Whoever may write an object whose kind keeps unknown fields may nest them deeper than a parser goes. What is so deep
//! is read by nobody here either, and left out: else one such object would keep its kind from being listed at all.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

/// The part that is skipped, at whatever depth.
const SKIPPED: &str = "managedFields";

/// Objects and lists within each other of which the innermost is empty, whatever it holds: far more than any object has
/// that means something, and half of what the parser allows.
const MOST_DEPTH: u8 = 64;

/// A value without the fields that are skipped.
#[derive(Clone, Debug)]
pub(super) struct Lean(pub(super) Value);

impl<'de> Deserialize<'de> for Lean {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Depth(0).deserialize(deserializer).map(Self)
    }
}

/// How many objects and lists stand around a value.
#[derive(Clone, Copy)]
struct Depth(u8);

impl Depth {
    const fn is_most(self) -> bool {
        self.0 + 1 >= MOST_DEPTH
    }

    const fn inside(self) -> Self {
        Self(self.0 + 1)
    }
}

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        if self.is_most() {
            // Ignoring does not nest.
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        while let Some(value) = items.next_element_seed(self.inside())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if name == SKIPPED || self.is_most() {
                entries.next_value::<IgnoredAny>()?;
            } else {
                map.insert(name, entries.next_value_seed(self.inside())?);
            }
        }
        Ok(Value::Object(map))
    }
}

/// What a page of a list says of itself.
#[derive(Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    /// Version of the list.
    pub(super) resource_version: String,
    /// Where the next page begins; empty at the last one.
    #[serde(rename = "continue", default)]
    pub(super) next: String,
}

/// Reads a page of a list and gives each of its objects to `each`.
pub(super) fn read_page(text: &str, each: &mut dyn FnMut(Value)) -> Result<PageMetadata, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let metadata = Page(each).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(metadata)
}

struct Page<'a>(&'a mut dyn FnMut(Value));

impl<'de> DeserializeSeed<'de> for Page<'_> {
    type Value = PageMetadata;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<PageMetadata, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Page<'_> {
    type Value = PageMetadata;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<PageMetadata, A::Error> {
        let mut metadata = None;
        while let Some(name) = entries.next_key::<String>()? {
            match name.as_str() {
                "metadata" => metadata = Some(entries.next_value()?),
                "items" => entries.next_value_seed(Items(self.0))?,
                _ => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        metadata.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

struct Items<'a>(&'a mut dyn FnMut(Value));

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("objects")
    }

    /// Some servers write `null` where there are none.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(Lean(item)) = items.next_element()? {
            (self.0)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_but_managed_fields_is_read() {
        let text = r#"{"metadata":{"managedFields":[{"f:a":{}}],"name":"a"},"spec":[1,-2,1.5,true,null,"x",{"b":{}}]}"#;
        let lean: Lean = serde_json::from_str(text).unwrap();
        assert_eq!(
            lean.0,
            json!({ "metadata": { "name": "a" }, "spec": [1, -2, 1.5, true, null, "x", { "b": {} }] })
        );
    }

    #[test]
    fn what_is_too_deep_is_left_out_and_nothing_else() {
        let depth = |mut value: &Value| {
            let mut depth = 0;
            while let Some(inner) = value.get("a").or_else(|| value.get(0)) {
                (depth, value) = (depth + 1, inner);
            }
            depth
        };
        for (open, close) in [("{\"a\":", "}"), ("[", "]")] {
            let nested = |times: usize| format!("{}1{}", open.repeat(times), close.repeat(times));
            for times in [1, 2, usize::from(MOST_DEPTH) - 2] {
                let Lean(value) = serde_json::from_str(&nested(times)).unwrap();
                assert_eq!(depth(&value), times);
            }
            // Deeper than serde_json goes, and what stands beside it.
            let text = format!(r#"{{"before":1,"deep":{},"after":[2]}}"#, nested(5_000));
            let Lean(value) = serde_json::from_str(&text).unwrap();
            assert_eq!((&value["before"], &value["after"]), (&json!(1), &json!([2])));
            assert_eq!(depth(&value["deep"]), usize::from(MOST_DEPTH) - 2);
            let page = format!(r#"{{"metadata":{{"resourceVersion":"5"}},"items":[{text},{text}]}}"#);
            let mut items = 0;
            read_page(&page, &mut |_| items += 1).unwrap();
            assert_eq!(items, 2);
        }
    }

    #[test]
    fn a_page_gives_its_objects_one_by_one() {
        let read = |text: &str| {
            let mut items = Vec::new();
            read_page(text, &mut |item| items.push(item)).map(|metadata| (metadata, items))
        };
        let page = r#"{"kind":"List","items":[{"a":1},7],"metadata":{"resourceVersion":"5","continue":"x"}}"#;
        let (metadata, items) = read(page).unwrap();
        assert_eq!((metadata.resource_version.as_str(), metadata.next.as_str()), ("5", "x"));
        assert_eq!(items, [json!({ "a": 1 }), json!(7)]);
        let (metadata, items) = read(r#"{"metadata":{"resourceVersion":"6"},"items":null}"#).unwrap();
        assert_eq!((metadata.next.as_str(), items.len()), ("", 0));
        for broken in [r#"{"items":[]}"#, r#"{"metadata":{"resourceVersion":"6"},"items":[{"a"#, r#"[]"#, "x"]
        {
            assert!(read(broken).is_err(), "{broken}");
        }
    }
}
