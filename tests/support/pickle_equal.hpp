#pragma once
/// Whether two values of pickle graphs are the same: kinds, values, order, and which objects are shared.

#include <unordered_map>

#include "format/pickle_graph.hpp"

namespace glu_ckpt {

/// Protocol 2 has no bytes, bytearrays and sets: a value of these kinds is also equal to the call that makes it.
class PickleComparison {
 public:
  PickleComparison(const PickleGraph& left, const PickleGraph& right) : left_(left), right_(right) {}

  bool equal(PickleRef a, PickleRef b) {
    pending_.assign({{a, b}});
    while (!pending_.empty()) {
      const auto [left, right] = pending_.back();
      pending_.pop_back();
      if (!compare(left, right)) return false;
    }
    return true;
  }

 private:
  bool compare(PickleRef a, PickleRef b) {
    const PickleKind kind = left_.kind(a);
    if (kind != right_.kind(b)) return right_.kind(b) == PickleKind::Call && pair_up(a, b) && compare_call(a, b);
    switch (kind) {
      case PickleKind::None: return true;
      case PickleKind::Bool: return left_.boolean(a) == right_.boolean(b);
      case PickleKind::Int: return left_.integer(a) == right_.integer(b);
      case PickleKind::Float: return bits(left_.number(a)) == bits(right_.number(b));
      case PickleKind::Tuple:
        if (!left_.has_items(a)) return !right_.has_items(b);
        break;
      default: break;
    }
    const auto seen = partners_.find(a);
    if (seen != partners_.end()) return seen->second == b;
    return pair_up(a, b) && compare_parts(kind, a, b);
  }

  static std::uint64_t bits(double value) { return __builtin_bit_cast(std::uint64_t, value); }

  /// One object on the left is one object on the right, and the other way round.
  bool pair_up(PickleRef a, PickleRef b) {
    return partners_.try_emplace(a, b).first->second == b && back_.try_emplace(b, a).first->second == a;
  }

  bool compare_parts(PickleKind kind, PickleRef a, PickleRef b) {
    switch (kind) {
      case PickleKind::BigInt:
      case PickleKind::String:
      case PickleKind::Bytes:
      case PickleKind::ByteArray: return left_.text(a) == right_.text(b);
      case PickleKind::Global: return left_.module(a) == right_.module(b) && left_.name(a) == right_.name(b);
      case PickleKind::Persistent: later(left_.arguments(a), right_.arguments(b)); return true;
      case PickleKind::Call:
      case PickleKind::New:
        later(left_.function(a), right_.function(b));
        later(left_.arguments(a), right_.arguments(b));
        if (left_.has_items(a) && left_.items_are_pairs(a) != right_.items_are_pairs(b)) return false;
        return later(left_.items(a), right_.items(b)) && later(left_.states(a), right_.states(b));
      case PickleKind::Dict: return later(left_.items(a), right_.items(b)) && later(left_.states(a), right_.states(b));
      default: return later(left_.items(a), right_.items(b));
    }
  }

  void later(PickleRef a, PickleRef b) { pending_.emplace_back(a, b); }

  bool later(const std::vector<PickleRef>& a, const std::vector<PickleRef>& b) {
    for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i) later(a[i], b[i]);
    return a.size() == b.size();
  }

  bool compare_call(PickleRef a, PickleRef call) {
    const std::string_view name = right_.name(right_.function(call));
    const std::vector<PickleRef> arguments = right_.items(right_.arguments(call));
    switch (left_.kind(a)) {
      case PickleKind::Bytes: return name == "encode" && encoded(call) == left_.text(a);
      case PickleKind::ByteArray: return name == "bytearray" && encoded(arguments.at(0)) == left_.text(a);
      case PickleKind::Set: return name == "set" && later(left_.items(a), right_.items(arguments.at(0)));
      case PickleKind::FrozenSet: return name == "frozenset" && later(left_.items(a), right_.items(arguments.at(0)));
      default: return false;
    }
  }

  /// What _codecs.encode(text, 'latin1') gives.
  std::string encoded(PickleRef call) const {
    const std::vector<PickleRef> arguments = right_.items(right_.arguments(call));
    const std::string_view text = right_.text(arguments.at(0));
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto lead = static_cast<unsigned char>(text[i]);
      bytes +=
          lead < 0x80 ? text[i] : static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f));
    }
    return right_.text(arguments.at(1)) == "latin1" ? bytes : "another encoding";
  }

  const PickleGraph& left_;
  const PickleGraph& right_;
  std::vector<std::pair<PickleRef, PickleRef>> pending_;
  std::unordered_map<PickleRef, PickleRef> partners_;
  std::unordered_map<PickleRef, PickleRef> back_;
};

/// `right` may spell values of `left` as protocol 2 does.
inline bool equal_pickles(const PickleGraph& left, PickleRef a, const PickleGraph& right, PickleRef b) {
  return PickleComparison(left, right).equal(a, b);
}

}  // namespace glu_ckpt
