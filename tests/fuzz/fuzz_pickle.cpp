/// A pickle. Whatever is read must be written so that it reads as the same values, and copy into another graph.

#include <cstdint>
#include <cstdlib>

#include "format/pickle_graph.hpp"
#include "glu_ckpt/error.hpp"
#include "support/pickle_equal.hpp"

namespace {

using namespace glu_ckpt;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_copy(const PickleGraph& graph, PickleRef root) {
  PickleGraph other("some text of its own");
  const PickleRef copy = other.import(graph, root);
  require(equal_pickles(graph, root, other, copy));
}

void check_round_trip(const PickleGraph& graph, PickleRef root, PickleNames names) {
  std::string written;
  try {
    written = write_pickle(graph, root);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::PickleDepth);
    return;
  }
  PickleGraph back(std::move(written));
  std::size_t end = 0;
  const PickleRef again = read_pickle(back, names, "written", 0, &end);
  require(end == back.source().size());
  require(equal_pickles(graph, root, back, again));
}

void check(const std::string& bytes, PickleNames names) {
  PickleGraph graph(bytes);
  PickleRef root = 0;
  try {
    root = read_pickle(graph, names, "fuzz");
  } catch (const Error&) {
    return;
  }
  check_copy(graph, root);
  check_round_trip(graph, root, names);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes, PickleNames::Torch);
  check(bytes, PickleNames::DcpMetadata);
  return 0;
}
