#pragma once
/// A pickle as a graph of plain values. Nothing is imported, called or resolved: a REDUCE is kept as a node
/// that says what would have been called with what.

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A node of a PickleGraph. Equal refs are one Python object: sharing and cycles are kept.
using PickleRef = u32;

enum class PickleKind : std::uint8_t {
  None,
  Bool,
  /// Fits 64 bits.
  Int,
  /// text() is its two's complement, little-endian.
  BigInt,
  Float,
  /// text() is UTF-8.
  String,
  Bytes,
  ByteArray,
  /// items() in order.
  List,
  Tuple,
  Set,
  FrozenSet,
  /// items() alternates keys and values, in the order they were set.
  Dict,
  /// A class or function by name: module() and name().
  Global,
  /// REDUCE: function() with the tuple arguments().
  Call,
  /// NEWOBJ: the class function() with the tuple arguments().
  New,
  /// BINPERSID: arguments() is the persistent id, for torch a tuple ('storage', type, key, location, numel).
  Persistent,
};

class PickleGraph {
 public:
  /// Nodes read from `text` point into it, so the graph keeps it.
  explicit PickleGraph(std::string text = {});
  PickleGraph(const PickleGraph&) = delete;
  PickleGraph& operator=(const PickleGraph&) = delete;

  std::string_view source() const;
  std::size_t size() const;

  PickleKind kind(PickleRef node) const;
  bool boolean(PickleRef node) const;
  i64 integer(PickleRef node) const;
  double number(PickleRef node) const;
  std::string_view text(PickleRef node) const;
  std::string_view module(PickleRef node) const;
  std::string_view name(PickleRef node) const;
  PickleRef function(PickleRef node) const;
  PickleRef arguments(PickleRef node) const;
  /// Of List, Tuple, Set, FrozenSet, Dict; of Call and New what APPENDS or SETITEMS put into the object
  /// (an OrderedDict's pairs, alternating).
  std::vector<PickleRef> items(PickleRef node) const;
  /// What BUILD gave a Call or New (or a Dict), in order; nearly always none or one.
  std::vector<PickleRef> states(PickleRef node) const;

  PickleRef add_none();
  PickleRef add_bool(bool value);
  PickleRef add_int(i64 value);
  PickleRef add_float(double value);
  /// `kind` is BigInt, String, Bytes or ByteArray. The view must point into source() or live as long.
  PickleRef add_view(PickleKind kind, std::string_view text);
  /// The same with text of the graph's own.
  PickleRef add_text(PickleKind kind, std::string text);
  PickleRef add_string(std::string text) { return add_text(PickleKind::String, std::move(text)); }
  /// `kind` is List, Tuple, Set, FrozenSet or Dict (items alternate keys and values).
  PickleRef add_container(PickleKind kind, std::span<const PickleRef> items);
  PickleRef add_tuple(std::initializer_list<PickleRef> items);
  PickleRef add_global(std::string_view module, std::string_view name);
  PickleRef add_call(PickleRef function, PickleRef arguments);
  PickleRef add_new(PickleRef type, PickleRef arguments);
  PickleRef add_persistent(PickleRef id);
  /// Appends to the items of a List, Set, Dict, Call or New.
  void extend(PickleRef node, std::span<const PickleRef> items);
  void add_state(PickleRef node, PickleRef state);
  /// Copies a value of another graph, sharing and cycles included, into this one.
  PickleRef import(const PickleGraph& other, PickleRef node);

 private:
  // Implementation: compact nodes (16 bytes), items in one pool by segments, so that a .metadata of
  // hundreds of MB stays within a few times its size.
};

}  // namespace glu_ckpt
