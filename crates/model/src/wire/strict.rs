//! JSON read more strictly than serde does by itself.
//!
//! Derived types read an object also from an array of its fields in order, which nobody means to offer and which
//! breaks when a field is added; and they take texts with U+0000, which PostgreSQL cannot store. Opaque JSON passes
//! as it is.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

/// The names under which serde_json passes what it keeps verbatim.
const VERBATIM: &str = "$serde_json::private::";

/// Makes a deserializer of JSON, and every part that it gives out, strict.
#[derive(Debug)]
pub struct Strict<T>(pub T);

/// Reads a value from the text of one JSON document.
///
/// # Errors
/// Fails for what is no JSON, has another shape, or breaks a rule of this module.
pub fn from_str<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Strict(&mut json))?;
    json.end()?;
    Ok(value)
}

macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*) => $visitor:ident;)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($argument,)* $visitor(visitor))
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    forward! {
        deserialize_any() => Anything;
        deserialize_bool() => Anything;
        deserialize_i8() => Anything;
        deserialize_i16() => Anything;
        deserialize_i32() => Anything;
        deserialize_i64() => Anything;
        deserialize_i128() => Anything;
        deserialize_u8() => Anything;
        deserialize_u16() => Anything;
        deserialize_u32() => Anything;
        deserialize_u64() => Anything;
        deserialize_u128() => Anything;
        deserialize_f32() => Anything;
        deserialize_f64() => Anything;
        deserialize_char() => Anything;
        deserialize_str() => Anything;
        deserialize_string() => Anything;
        deserialize_bytes() => Anything;
        deserialize_byte_buf() => Anything;
        deserialize_option() => Anything;
        deserialize_unit() => Anything;
        deserialize_unit_struct(name: &'static str) => Anything;
        deserialize_seq() => Anything;
        deserialize_tuple(length: usize) => Anything;
        deserialize_tuple_struct(name: &'static str, length: usize) => Anything;
        deserialize_map() => Anything;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) => NoArray;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) => Anything;
        deserialize_identifier() => Anything;
        deserialize_ignored_any() => Anything;
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        if name.starts_with(VERBATIM) {
            return self.0.deserialize_newtype_struct(name, visitor);
        }
        self.0.deserialize_newtype_struct(name, Anything(visitor))
    }
}

/// Takes any value, and hands out strict parts.
struct Anything<V>(V);

/// Takes any value but an array, and hands out strict parts.
struct NoArray<V>(V);

/// Refuses a text that no database of ours stores.
fn check<E: Error>(text: &str) -> Result<(), E> {
    if text.contains('\0') { Err(E::custom("must not contain U+0000")) } else { Ok(()) }
}

/// Passes on the values that JSON has; the others are those of the default implementation.
macro_rules! visit {
    () => {
        type Value = V::Value;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.expecting(formatter)
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
            self.0.visit_bool(value)
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
            self.0.visit_i64(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
            self.0.visit_u64(value)
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
            self.0.visit_f64(value)
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
            check(value)?;
            self.0.visit_str(value)
        }

        fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
            check(value)?;
            self.0.visit_borrowed_str(value)
        }

        fn visit_none<E: Error>(self) -> Result<V::Value, E> {
            self.0.visit_none()
        }

        fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
            self.0.visit_unit()
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
            self.0.visit_some(Strict(deserializer))
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
            self.0.visit_newtype_struct(Strict(deserializer))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
            self.0.visit_map(Strict(map))
        }

        fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
            self.0.visit_enum(Strict(data))
        }
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Anything<V> {
    visit!();

    fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(sequence))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for NoArray<V> {
    visit!();

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("must be an object, not an array"))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(Strict(seed))?;
        Ok((value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Anything(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, NoArray(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::json_text::JsonText;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        text: String,
        opaque: Option<JsonText>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        Nothing,
        Number(f64),
        Inner(Inner),
        Fields { pair: (u8, i64), list: Vec<Inner> },
    }

    fn read(text: &str) -> Result<Choice, String> {
        from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_meant_is_read() {
        assert_eq!(read(r#""nothing""#), Ok(Choice::Nothing));
        assert_eq!(read(r#"{"number":1}"#), Ok(Choice::Number(1.0)));
        let opaque = JsonText::parse(r#"[1, {"a":"\u0000"}]"#).unwrap();
        let inner = |opaque| Inner { text: "é\n".to_owned(), opaque };
        assert_eq!(
            read(r#"{"inner":{"text":"é\n","opaque":[1, {"a":"\u0000"}]}}"#),
            Ok(Choice::Inner(inner(Some(opaque))))
        );
        let fields = Choice::Fields { pair: (1, -1), list: vec![inner(None), inner(None)] };
        let text = r#"{"fields":{"pair":[1,-1],"list":[{"text":"é\n","opaque":null},{"text":"é\n"}]}}"#;
        assert_eq!(read(text), Ok(fields));
        let map: BTreeMap<String, bool> = from_str(r#"{"a":true,"b":false}"#).unwrap();
        assert_eq!(map.len(), 2);
    }

    #[test]
    fn objects_are_not_read_from_arrays() {
        let cases =
            [r#"{"inner":["x",null]}"#, r#"{"fields":[[1,2],[]]}"#, r#"{"fields":{"pair":[1,2],"list":[["x",null]]}}"#];
        for text in cases {
            assert!(serde_json::from_str::<Choice>(text).is_ok(), "{text} is what serde takes");
            let error = read(text).unwrap_err();
            assert!(error.starts_with("must be an object, not an array"), "{text}: {error}");
        }
    }

    #[test]
    fn texts_and_keys_hold_no_nul_and_fields_come_once() {
        assert!(read(r#"{"inner":{"text":"a\u0000"}}"#).unwrap_err().starts_with("must not contain U+0000"));
        assert!(from_str::<BTreeMap<String, bool>>(r#"{"\u0000":true}"#).is_err());
        assert!(read(r#"{"inner":{"text":"a","text":"b"}}"#).unwrap_err().starts_with("duplicate field `text`"));
        assert!(read(r#""nothing" 1"#).is_err());
    }
}
