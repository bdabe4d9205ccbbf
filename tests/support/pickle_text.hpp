#pragma once
/// Pickles in tests: their bytes, and a value as a line of text.

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "format/pickle_graph.hpp"

namespace glu_ckpt {

/// The bytes of a literal that may hold zeros.
template <std::size_t N>
std::string bytes_of(const char (&literal)[N]) {
  return {literal, N - 1};
}

inline std::string pickle_seed(const std::string& name) {
  const std::string path = std::string(std::getenv("GLU_CKPT_GALLERIES")) + "/corpus/pickle/" + name;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string show(const PickleGraph& graph, PickleRef node);

inline std::string show_all(const PickleGraph& graph, const std::vector<PickleRef>& nodes) {
  std::string text;
  for (const PickleRef node : nodes) text += fmt::format("{}{}", text.empty() ? "" : " ", show(graph, node));
  return text;
}

inline std::string show_hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

inline std::string show_object(const PickleGraph& graph, PickleRef node, std::string_view verb) {
  std::string text =
      fmt::format("{}:{}{}", verb, show(graph, graph.function(node)), show(graph, graph.arguments(node)));
  if (graph.has_items(node))
    text +=
        fmt::format("{}{}", graph.items_are_pairs(node) ? " pairs " : " items ", show_all(graph, graph.items(node)));
  const auto states = graph.states(node);
  return states.empty() ? text : fmt::format("{} built {}", text, show_all(graph, states));
}

/// Of a value without cycles: [list] (tuple) {dict, keys and values alternating} s[set] f[frozenset] m.name
/// call:f(args) new:c(args) persistent:id b'hex' B'hex' (bytearray) 0xhex (BigInt, little-endian).
inline std::string show(const PickleGraph& graph, PickleRef node) {
  switch (graph.kind(node)) {
    case PickleKind::None: return "None";
    case PickleKind::Bool: return graph.boolean(node) ? "True" : "False";
    case PickleKind::Int: return fmt::format("{}", graph.integer(node));
    case PickleKind::BigInt: return fmt::format("0x{}", show_hex(graph.text(node)));
    case PickleKind::Float: return fmt::format("{:.17g}f", graph.number(node));
    case PickleKind::String: return fmt::format("'{}'", graph.text(node));
    case PickleKind::Bytes: return fmt::format("b'{}'", show_hex(graph.text(node)));
    case PickleKind::ByteArray: return fmt::format("B'{}'", show_hex(graph.text(node)));
    case PickleKind::List: return fmt::format("[{}]", show_all(graph, graph.items(node)));
    case PickleKind::Tuple: return fmt::format("({})", show_all(graph, graph.items(node)));
    case PickleKind::Set: return fmt::format("s[{}]", show_all(graph, graph.items(node)));
    case PickleKind::FrozenSet: return fmt::format("f[{}]", show_all(graph, graph.items(node)));
    case PickleKind::Dict: {
      const auto states = graph.states(node);
      return fmt::format("{{{}}}{}{}", show_all(graph, graph.items(node)), states.empty() ? "" : " built ",
                         show_all(graph, states));
    }
    case PickleKind::Global: return fmt::format("{}.{}", graph.module(node), graph.name(node));
    case PickleKind::Call: return show_object(graph, node, "call");
    case PickleKind::New: return show_object(graph, node, "new");
    case PickleKind::Persistent: return fmt::format("persistent:{}", show(graph, graph.arguments(node)));
  }
  return "?";
}

}  // namespace glu_ckpt
