#include <gtest/gtest.h>

#include <set>

#include "format/pickle_graph.hpp"
#include "support/pickle_text.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

/// `body` between PROTO 4 and STOP.
std::string pickle(const std::string& body) { return bytes_of("\x80\x04") + body + "."; }

std::string read_and_show(const std::string& bytes, PickleNames names = PickleNames::Torch) {
  PickleGraph graph(bytes);
  return show(graph, read_pickle(graph, names, "x.pt"));
}

/// The slug and the message, "none" if it is read.
std::pair<std::string, std::string> failure_of(const std::string& bytes, PickleNames names = PickleNames::Torch) {
  PickleGraph graph(bytes);
  try {
    read_pickle(graph, names, "x.pt");
  } catch (const Error& error) {
    EXPECT_EQ(error.file(), "x.pt");
    return {std::string(slug(error.code())), error.what()};
  }
  return {"none", ""};
}

TEST(PickleReader, ReadsATensorOfTorchSave) {
  EXPECT_EQ(read_and_show(pickle_seed("tensor")),
            "call:torch._utils._rebuild_tensor_v2(persistent:('storage' torch.BFloat16Storage '0' 'cpu' 6) 0 (2 3) "
            "(3 1) False call:collections.OrderedDict())");
}

TEST(PickleReader, ReadsMetadataOfADistributedCheckpoint) {
  PickleGraph graph(pickle_seed("dcp_metadata"));
  const PickleRef root = read_pickle(graph, PickleNames::DcpMetadata, ".metadata");
  ASSERT_EQ(graph.kind(root), PickleKind::New);
  EXPECT_EQ(show(graph, graph.function(root)), "torch.distributed.checkpoint.metadata.Metadata");
  const auto states = graph.states(root);
  ASSERT_EQ(states.size(), 1u);
  const auto fields = graph.items(states[0]);
  ASSERT_EQ(fields.size(), 10u);
  EXPECT_EQ(show(graph, fields[0]), "'state_dict_metadata'");
  const auto tensors = graph.items(fields[1]);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(show(graph, tensors[0]), "'decoder.layers.mlp.experts.experts.linear_fc1.weight'");
  const std::string module = "new:torch.distributed.checkpoint.metadata.";
  EXPECT_EQ(show(graph, tensors[1]),
            module + "TensorStorageMetadata() built {'properties' " + module +
                "TensorProperties() built (torch.bfloat16 call:torch.serialization._get_layout('torch.strided') False "
                "call:torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING(0) False) "
                "'size' call:torch.Size((1 1 4 2)) 'chunks' [" +
                module + "ChunkStorageMetadata() built {'offsets' call:torch.Size((0 0 0 0)) 'sizes' " +
                "call:torch.Size((1 1 2 2))} " + module +
                "ChunkStorageMetadata() built {'offsets' call:torch.Size((0 0 2 0)) 'sizes' "
                "call:torch.Size((1 1 2 2))}]}");
  EXPECT_EQ(show(graph, tensors[3]), module + "BytesStorageMetadata()");
  // The key of both tables is one string.
  const auto storage = graph.items(fields[5]);
  ASSERT_EQ(storage.size(), 6u);
  EXPECT_EQ(graph.items(graph.states(storage[2])[0])[1], tensors[0]);
}

struct Reading {
  std::string body;
  std::string shown;
};

TEST(PickleReader, ReadsEveryOpcode) {
  const Reading readings[] = {
      {"N", "None"},
      {"\x88", "True"},
      {"\x89", "False"},
      {bytes_of("J\x00\x00\x00\x80"), "-2147483648"},
      {bytes_of("J\xff\xff\xff\x7f"), "2147483647"},
      {"K\xff", "255"},
      {"M\x01\x80", "32769"},
      {bytes_of("\x8a\x00"), "0"},
      {"\x8a\x01\xff", "-1"},
      {bytes_of("\x8a\x02\xff\x00"), "255"},
      {bytes_of("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"), "-9223372036854775808"},
      {bytes_of("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"), "0x000000000000008000"},
      {bytes_of("\x8a\x0a\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "7"},
      {bytes_of("\x8b\x03\x00\x00\x00\x01\x02\x03"), "197121"},
      {bytes_of("G\xbf\xf8\x00\x00\x00\x00\x00\x00"), "-1.5f"},
      {bytes_of("X\x03\x00\x00\x00") + "a\xc3\xa9", "'a\xc3\xa9'"},
      {bytes_of("X\x03\x00\x00\x00\xed\xb2\x80"), "'\xed\xb2\x80'"},
      {bytes_of("\x8c\x02hi"), "'hi'"},
      {bytes_of("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"), "'hi'"},
      {bytes_of("U\x02hi"), "'hi'"},
      {bytes_of("U\x02h\xff"), "b'68ff'"},
      {bytes_of("T\x02\x00\x00\x00hi"), "'hi'"},
      {bytes_of("C\x02\x00\xff"), "b'00ff'"},
      {bytes_of("B\x02\x00\x00\x00\x00\xff"), "b'00ff'"},
      {bytes_of("\x8e\x02\x00\x00\x00\x00\x00\x00\x00\x00\xff"), "b'00ff'"},
      {bytes_of("\x96\x02\x00\x00\x00\x00\x00\x00\x00\x00\xff"), "B'00ff'"},
      {")", "()"},
      {"N\x85", "(None)"},
      {"NK\x01\x86", "(None 1)"},
      {"NK\x01K\x02\x87", "(None 1 2)"},
      {"(NK\x01K\x02K\x03t", "(None 1 2 3)"},
      {"(t", "()"},
      {"]", "[]"},
      {"]NaK\x01"
       "a",
       "[None 1]"},
      {"](NK\x01"
       "e(K\x02"
       "e(e",
       "[None 1 2]"},
      {"}", "{}"},
      {"}K\x01Ns", "{1 None}"},
      {"}(K\x01NK\x02Nu(u", "{1 None 2 None}"},
      {"\x8f", "s[]"},
      {"\x8f(NK\x01\x90", "s[None 1]"},
      {"(NK\x01\x91", "f[None 1]"},
      {"ctorch\nfloat32\n", "torch.float32"},
      {bytes_of("\x8c\x05torch\x8c\x07"
                "float32\x93"),
       "torch.float32"},
      {"ctorch\nSize\n)\x85R", "call:torch.Size(())"},
      {"cargparse\nNamespace\n)\x81", "new:argparse.Namespace()"},
      {"cargparse\nNamespace\n)}\x92", "new:argparse.Namespace()"},
      {"cargparse\nNamespace\n)\x81}b", "new:argparse.Namespace() built {}"},
      {"cargparse\nNamespace\n)\x81}bNbK\x01"
       "b",
       "new:argparse.Namespace() built {} None 1"},
      {"}Nb", "{} built None"},
      {"ccollections\nOrderedDict\n)R(K\x01NuK\x02NsNb",
       "call:collections.OrderedDict() pairs 1 None 2 None built None"},
      {"ccollections\ndeque\n)R(NNe", "call:collections.deque() items None None"},
      {"NQ", "persistent:None"},
      {"N2\x86", "(None None)"},
      {"NK\x01"
       "0",
       "None"},
      {"N(0", "None"},
      {"N(K\x01K\x02"
       "1",
       "None"},
      {bytes_of("]q\x00h\x00\x86"), "([] [])"},
      {bytes_of("]r\xff\xff\xff\xffj\xff\xff\xff\xff\x86"), "([] [])"},
      {bytes_of("]\x94}\x94h\x01h\x00\x87\x86"), "([] ({} {} []))"},
      {bytes_of("\x95\x01\x00\x00\x00\x00\x00\x00\x00N"), "None"},
  };
  for (const Reading& reading : readings)
    EXPECT_EQ(read_and_show(pickle(reading.body)), reading.shown) << show_hex(reading.body);
}

TEST(PickleReader, EqualRefsAreOneObject) {
  PickleGraph graph(pickle(bytes_of("]q\x00h\x00]\x87")));
  const auto items = graph.items(read_pickle(graph, PickleNames::Torch, "x.pt"));
  EXPECT_EQ(items[0], items[1]);
  EXPECT_NE(items[0], items[2]);
}

TEST(PickleReader, MemoizeTakesTheNumberOfSlotsInUse) {
  // Slot 1 is set before slot 0, so MEMOIZE takes 1 again, and then 2.
  EXPECT_EQ(read_and_show(pickle(bytes_of("](K\x01q\x01K\x02\x94K\x03q\x00K\x04\x94h\x00h\x01h\x02"
                                          "e"))),
            "[1 2 3 4 3 2 4]");
  // A slot that is set again still counts once.
  EXPECT_EQ(read_and_show(pickle(bytes_of("](K\x01q\x01K\x02q\x00K\x03q\x01K\x04\x94h\x01h\x02"
                                          "e"))),
            "[1 2 3 4 3 4]");
}

TEST(PickleReader, ReadsOnePickleAfterAnother) {
  const std::string first = pickle("K\x01");
  PickleGraph graph(first + pickle("K\x02") + "rest");
  std::size_t end = 0;
  EXPECT_EQ(graph.integer(read_pickle(graph, PickleNames::Torch, "x.pt", 0, &end)), 1);
  EXPECT_EQ(end, first.size());
  EXPECT_EQ(graph.integer(read_pickle(graph, PickleNames::Torch, "x.pt", end, &end)), 2);
  EXPECT_EQ(end, 2 * first.size());
}

struct Refusal {
  std::string bytes;
  std::string slug;
  /// The message without "x.pt: ", or its beginning.
  std::string message;
};

void expect_refusals(std::span<const Refusal> refusals, PickleNames names = PickleNames::Torch) {
  for (const Refusal& refusal : refusals) {
    const auto [code, message] = failure_of(refusal.bytes, names);
    EXPECT_EQ(code, refusal.slug) << show_hex(refusal.bytes);
    EXPECT_EQ(message.substr(0, 6 + refusal.message.size()), "x.pt: " + refusal.message) << message;
  }
}

TEST(PickleReader, RefusesWhatIsCut) {
  const Refusal refusals[] = {
      {"", "pickle-truncated", "byte 0: the pickle needs 1 more bytes and has 0"},
      {"\x80\x02", "pickle-truncated", "byte 2: the pickle needs 1 more bytes"},
      {"\x80\x02K", "pickle-truncated", "byte 2: the pickle needs 1 more bytes"},
      {pickle(bytes_of("NX\xff\xff\xff\xff")), "pickle-truncated",
       "byte 3: the pickle needs 4294967295 more bytes and has 1;"},
      {pickle(bytes_of("T\xff\xff\xff\xff")), "pickle-truncated", "byte 2: the pickle needs 4294967295 more bytes"},
      {pickle(bytes_of("\x8b\x00\x00\x00\x80")), "pickle-truncated", "byte 2: the pickle needs 2147483648 more bytes"},
      {pickle(bytes_of("\x8e\x00\x00\x00\x00\x00\x00\x00\x80")), "pickle-truncated",
       "byte 2: the pickle needs 9223372036854775808 more bytes"},
      {pickle(bytes_of("\x8d\xff\xff\xff\xff\xff\xff\xff\xff")), "pickle-truncated",
       "byte 2: the pickle needs 18446744073709551615 more bytes"},
      {pickle(bytes_of("\x96\x02\x00\x00\x00\x00\x00\x00\x00")), "pickle-truncated", "byte 2: the pickle needs 2 more"},
      {pickle(bytes_of("\x95\x03\x00\x00\x00\x00\x00\x00\x00N")), "pickle-truncated",
       "byte 2: a frame of 3 bytes where 2"},
      {"\x80\x02"
       "ctorch\nSize",
       "pickle-truncated", "byte 2: the pickle ends within a name"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, RefusesOtherOpcodesAndProtocols) {
  const Refusal refusals[] = {
      {"(I1\n.", "pickle-opcode", "byte 0: not a pickle of protocol 2 to 5"},
      {bytes_of("\x80\x06N."), "pickle-opcode", "byte 0: a pickle of protocol 6"},
      {bytes_of("\x80\x01N."), "pickle-opcode", "byte 0: a pickle of protocol 1"},
      {pickle("N\x80\x02"), "pickle-opcode", "byte 3: opcode 0x80"},
      {pickle("NI1\n"), "pickle-opcode", "byte 3: opcode 0x49"},
      {pickle(bytes_of("U\x02h\xffX\x02\x00\x00\x00h\xff")), "pickle-opcode",
       "byte 6: a string of 2 bytes is not UTF-8"},
      {pickle(bytes_of("\x8c\x02\xc0\x80")), "pickle-opcode", "byte 2: a string of 2 bytes is not UTF-8"},
      {pickle(bytes_of("\x8c\x04\xf4\x90\x80\x80")), "pickle-opcode", "byte 2: a string of 4 bytes is not UTF-8"},
      {pickle(bytes_of("\x8c\x01\x80")), "pickle-opcode", "byte 2: a string of 1 bytes is not UTF-8"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, KnowsNoOpcodeBesidesItsOwn) {
  const std::string known = bytes_of(
      "().012BCGJKMNQRTUX]abcehjqrstu}\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96");
  for (int op = 0; op < 256; ++op) {
    const bool is_known = known.find(static_cast<char>(op)) != std::string::npos;
    EXPECT_EQ(failure_of(pickle(std::string(1, static_cast<char>(op)))).first == "pickle-opcode", !is_known) << op;
  }
}

TEST(PickleReader, RefusesADamagedStack) {
  const Refusal refusals[] = {
      {pickle("0"), "pickle-stack", "byte 2: POP with nothing on the stack"},
      {pickle("2"), "pickle-stack", "byte 2: the opcode needs 1 values on the stack and there are 0"},
      {pickle("N\x86"), "pickle-stack", "byte 3: the opcode needs 2 values on the stack and there are 1"},
      {pickle("N(\x85"), "pickle-stack", "byte 4: the opcode needs 1 values on the stack and there are 0"},
      {pickle("Nt"), "pickle-stack", "byte 3: the opcode needs a MARK"},
      {pickle("1"), "pickle-stack", "byte 2: the opcode needs a MARK"},
      {pickle(""), "pickle-stack", "byte 2: the pickle stops with 0 values and 0 marks"},
      {pickle("NN"), "pickle-stack", "byte 4: the pickle stops with 2 values and 0 marks"},
      {pickle("N("), "pickle-stack", "byte 4: the pickle stops with 1 values and 1 marks"},
      {pickle("}(Nu"), "pickle-stack", "byte 5: SETITEMS with 1 values"},
      {pickle("](NNu"), "pickle-stack", "byte 6: SETITEMS on a value that is no dict"},
      {pickle("}(Ne"), "pickle-stack", "byte 5: APPENDS to a value that is no list"},
      {pickle(")Na"), "pickle-stack", "byte 4: APPENDS to a value that is no list"},
      {pickle("](N\x90"), "pickle-stack", "byte 5: ADDITEMS to a value that is no set"},
      {pickle("(Ne"), "pickle-stack", "byte 4: the opcode needs 2 values on the stack and there are 1"},
      {pickle("ccollections\ndeque\n)RNaNNs"), "pickle-stack", "byte 27: both APPENDS and SETITEMS on one object"},
      {pickle("NN\x93"), "pickle-stack", "byte 4: STACK_GLOBAL needs a module and a name as strings"},
      {pickle("q\x01"), "pickle-stack", "byte 2: the opcode needs 1 values"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, RefusesMemoSlotsThatWereNeverSet) {
  const Refusal refusals[] = {
      {pickle("Nq\x01h\x02"), "pickle-memo", "byte 5: the pickle fetches memo 2, which was never set"},
      {pickle(bytes_of("Nq\x01h\x00")), "pickle-memo", "byte 5: the pickle fetches memo 0, which was never set"},
      {pickle("j\xff\xff\xff\xff"), "pickle-memo", "byte 2: the pickle fetches memo 4294967295, which was never set"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, RefusesNamesOutsideTheList) {
  const Refusal refusals[] = {
      {pickle("Ncposix\nsystem\nX"), "pickle-global",
       "byte 3: the pickle names posix.system, which is not in the list of names that checkpoints hold; it was not "
       "run"},
      {pickle(bytes_of("\x8c\x02os\x8c\x06system\x93")), "pickle-global", "byte 14: the pickle names os.system, which"},
      {pickle("c\nsystem\n"), "pickle-global", "byte 2: the pickle names .system, which"},
      {pickle("cos\x1b[31m\nsystem\n"), "pickle-global", "byte 2: the pickle names os?[31m.system, which"},
      {pickle("c" + std::string(200, 'm') + "\nf\n"), "pickle-global",
       "byte 2: the pickle names " + std::string(80, 'm') + "....f, which"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, RefusesCalls) {
  const Refusal refusals[] = {
      {pickle("ctorch\nFloatStorage\n)R"), "pickle-call", "byte 23: the pickle calls torch.FloatStorage, which"},
      {pickle("ctorch\nfloat32\n)\x81"), "pickle-call", "byte 18: the pickle calls torch.float32, which"},
      {pickle("ctorch\nfloat32\n)}\x92"), "pickle-call", "byte 19: the pickle calls torch.float32, which"},
      {pickle("N)R"), "pickle-call", "byte 4: the pickle calls a value that is not a name"},
      {pickle("ctorch\nSize\n)R)R"), "pickle-call", "byte 17: the pickle calls a value that is not a name"},
      {pickle("ctorch\nSize\nNR"), "pickle-call", "byte 15: the arguments for torch.Size are not a tuple"},
      {pickle("cargparse\nNamespace\n)}NNs\x92"), "pickle-call", "byte 27: NEWOBJ_EX with keyword arguments"},
      {pickle("cargparse\nNamespace\n)N\x92"), "pickle-call", "byte 24: NEWOBJ_EX with keyword arguments"},
      {pickle("ctorch\nSize\nNb"), "pickle-call", "byte 15: BUILD gives a state to a value that is no object"},
      {pickle("]Nb"), "pickle-call", "byte 4: BUILD gives a state to a value that is no object"},
  };
  expect_refusals(refusals);
}

TEST(PickleReader, LimitsIntegers) {
  const std::string digits(4096, '\x11');
  EXPECT_EQ(failure_of(pickle(bytes_of("\x8b\x00\x10\x00\x00") + digits)).first, "none");
  const Refusal refusals[] = {{pickle(bytes_of("\x8b\x01\x10\x00\x00\x11") + digits), "pickle-limit",
                               "byte 2: an integer of 4097 bytes; the limit is 4096"}};
  expect_refusals(refusals);
}

TEST(PickleReader, GetattrIsOnlyForTheMembersOfEnums) {
  const std::string getattr = "c__builtin__\ngetattr\n";
  const std::string encoding = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
  const std::string member = bytes_of("\x8c\x17TORCH_CONTIGUOUS_FORMAT");
  EXPECT_EQ(read_and_show(pickle(getattr + encoding + member + "\x86R"), PickleNames::DcpMetadata),
            "call:__builtin__.getattr(torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING "
            "'TORCH_CONTIGUOUS_FORMAT')");
  const std::string why = "the pickle calls __builtin__.getattr, which";
  const Refusal refusals[] = {
      {pickle(getattr + "ctorch\nSize\n" + member + "\x86R"), "pickle-call", "byte 61: " + why},
      {pickle(getattr + encoding + "N\x86R"), "pickle-call", "byte 85: " + why},
      {pickle(getattr + encoding + member + "N\x87R"), "pickle-call", "byte 110: " + why},
      {pickle(getattr + "NR"), "pickle-call", "byte 24: " + why},
      {pickle(getattr + encoding + member + "\x86\x81"), "pickle-call", "byte 109: " + why},
  };
  expect_refusals(refusals, PickleNames::DcpMetadata);
  EXPECT_EQ(failure_of(refusals[0].bytes).first, "pickle-global");
}

TEST(PickleReader, APickleCutAnywhereIsTruncated) {
  for (const char* name : {"tensor", "dcp_metadata", "opcodes", "values_protocol_2", "values_protocol_5"}) {
    const std::string whole = pickle_seed(name);
    const PickleNames names = name == std::string("dcp_metadata") ? PickleNames::DcpMetadata : PickleNames::Torch;
    EXPECT_EQ(failure_of(whole, names).first, "none") << name;
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
      EXPECT_EQ(failure_of(whole.substr(0, bytes), names).first, "pickle-truncated") << name << " " << bytes;
  }
}

/// Small values take many times the bytes that spell them.
TEST(PickleReader, SmallValuesHaveABudget) {
  constexpr std::size_t kMany = 3'000'000;
  const auto list_of = [&](const std::string& value, std::size_t count) {
    std::string text = "](";
    for (std::size_t i = 0; i < count; ++i) text += value;
    return pickle(text + "e");
  };
  for (const std::string value : {"]", "}", "N"}) {
    EXPECT_EQ(failure_of(list_of(value, 2 * kMany)).first, "pickle-limit") << value;
    EXPECT_EQ(failure_of(list_of(value, 200'000)).first, "none") << value;
  }
}

TEST(PickleReader, DepthAndNumberOfMarksAreNoMatter) {
  constexpr std::size_t kDeep = 300'000;
  EXPECT_EQ(failure_of(pickle(std::string(kDeep, ']') + std::string(kDeep - 1, 'a'))).first, "none");
  EXPECT_EQ(failure_of(pickle("N" + std::string(kDeep, '\x85'))).first, "none");
  EXPECT_EQ(failure_of(pickle(std::string(kDeep, '('))).first, "pickle-stack");
  EXPECT_EQ(failure_of(pickle(std::string(kDeep, '(') + std::string(kDeep, 't'))).first, "none");
}

TEST(PickleReader, KeepsOneNodeOfASharedValue) {
  // List n holds list n - 1 twice: 2^60 paths, one node each.
  std::string body = bytes_of("]q\x00");
  for (char level = 1; level <= 60; ++level) {
    const std::string below{'h', static_cast<char>(level - 1)};
    body += "](" + below + below + "eq" + level;
  }
  PickleGraph graph(pickle("(" + body + "t"));
  const std::size_t before = graph.size();
  read_pickle(graph, PickleNames::Torch, "x.pt");
  EXPECT_EQ(graph.size() - before, 62u);
}

/// The opcodes that make a node of the kind.
std::string makers(PickleKind kind) {
  switch (kind) {
    case PickleKind::Int: return "JKM\x8a\x8b";
    case PickleKind::String: return "XUT\x8c\x8d";
    case PickleKind::List: return "]";
    case PickleKind::Dict: return "}";
    case PickleKind::Tuple: return "t\x85\x86\x87";
    case PickleKind::Call: return "R";
    case PickleKind::New: return "\x81";
    case PickleKind::Persistent: return "Q";
    default: return {};
  }
}

TEST(PickleReader, EveryNodeIsAtTheOpcodeThatMadeIt) {
  for (const auto& [seed, names] :
       {std::pair("tensor", PickleNames::Torch), std::pair("dcp_metadata", PickleNames::DcpMetadata)}) {
    PickleGraph graph(pickle_seed(seed));
    const std::size_t shared = graph.size();
    read_pickle(graph, names, "x.pt");
    std::set<i64> positions;
    for (PickleRef node = 0; node < graph.size(); ++node) {
      const auto position = graph.position(node);
      EXPECT_EQ(position.has_value(), node >= shared && graph.kind(node) != PickleKind::Global) << node;
      if (!position) continue;
      EXPECT_TRUE(positions.insert(*position).second) << *position;
      EXPECT_NE(makers(graph.kind(node)).find(graph.source()[static_cast<std::size_t>(*position)]), std::string::npos)
          << seed << ": byte " << *position;
    }
    EXPECT_GT(positions.size(), 5u);
    EXPECT_FALSE(graph.position(graph.add_string("made")));
  }
}

TEST(PickleReader, AListMayHoldItself) {
  PickleGraph graph(
      pickle(bytes_of("]q\x00h\x00"
                      "a")));
  const PickleRef root = read_pickle(graph, PickleNames::Torch, "x.pt");
  EXPECT_EQ(graph.items(root), std::vector<PickleRef>{root});
}

struct NameCase {
  std::string_view module;
  std::string_view name;
  NameUse torch;
  NameUse dcp;
};

TEST(PickleNames, TheListOfEachKindOfFile) {
  constexpr NameUse kRefused = NameUse::Refused, kValue = NameUse::Value, kCallable = NameUse::Callable;
  const NameCase cases[] = {
      {"torch", "bfloat16", kValue, kValue},
      {"torch", "float8_e4m3fn", kValue, kValue},
      {"torch", "BFloat16Storage", kValue, kRefused},
      {"torch.storage", "UntypedStorage", kValue, kRefused},
      {"torch", "Size", kCallable, kCallable},
      {"torch._utils", "_rebuild_tensor_v3", kCallable, kRefused},
      {"torch._utils", "_rebuild_device_tensor_from_numpy", kRefused, kRefused},
      {"torch.serialization", "_get_layout", kCallable, kCallable},
      {"torch.distributed.checkpoint.metadata", "Metadata", kRefused, kCallable},
      {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", kRefused, kCallable},
      {"torch.distributed.checkpoint.planner", "WriteItemType", kRefused, kCallable},
      {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", kCallable, kCallable},
      {"megatron.core.dist_checkpointing.strategies.torch", "save", kValue, kRefused},
      {"megatron.core.transformer.enums", "AttnBackend", kCallable, kRefused},
      {"megatron.core.activations", "squared_relu", kValue, kRefused},
      {"megatron.training.utils", "load", kRefused, kRefused},
      {"megatron.core.x", "Enum.os.system", kRefused, kRefused},
      {"megatron", "Anything", kRefused, kRefused},
      {"megatron_evil.core", "Anything", kRefused, kRefused},
      {"transformer_engine.common.recipe", "DelayedScaling", kCallable, kRefused},
      {"transformer_engine.common.recipe", "_FormatHelper", kCallable, kRefused},
      {"transformer_engine.common", "DelayedScaling", kRefused, kRefused},
      {"torch._C._nn", "gelu", kValue, kRefused},
      {"builtins", "set", kCallable, kCallable},
      {"__builtin__", "xrange", kCallable, kCallable},
      {"builtins", "getattr", kRefused, kValue},
      {"builtins", "eval", kRefused, kRefused},
      {"__builtin__", "exec", kRefused, kRefused},
      {"builtins", "__import__", kRefused, kRefused},
      {"builtins", "open", kRefused, kRefused},
      {"builtins", "set frozenset", kRefused, kRefused},
      {"builtins", "frozen", kRefused, kRefused},
      {"builtins", "ozenset", kRefused, kRefused},
      {"builtins", "", kRefused, kRefused},
      {"os", "system", kRefused, kRefused},
      {"posix", "system", kRefused, kRefused},
      {"subprocess", "Popen", kRefused, kRefused},
      {"functools", "partial", kRefused, kRefused},
      {"operator", "attrgetter", kRefused, kRefused},
      {"torch", "load", kRefused, kRefused},
      {"torch.hub", "load", kRefused, kRefused},
      {"torch.jit", "load", kRefused, kRefused},
      {"numpy", "load", kRefused, kRefused},
      {"pickle", "loads", kRefused, kRefused},
      {"io", "open", kRefused, kRefused},
  };
  for (const NameCase& c : cases) {
    EXPECT_EQ(name_use(PickleNames::Torch, c.module, c.name), c.torch) << c.module << "." << c.name;
    EXPECT_EQ(name_use(PickleNames::DcpMetadata, c.module, c.name), c.dcp) << c.module << "." << c.name;
  }
}

}  // namespace
}  // namespace glu_ckpt
