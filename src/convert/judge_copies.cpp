#include <algorithm>

#include "convert/conversion.hpp"
#include "convert/judge.hpp"
#include "core/byte_fields.hpp"
#include "core/fail.hpp"
#include "io/consumed_files.hpp"
#include "model/locate_errors.hpp"
#include "model/saved_arguments.hpp"

namespace glu_ckpt {
namespace {

/// Says what becomes of copies that are none, and lets those be copies that were only rounded, if the plan drops them.
/// Throws where it drops another one.
void judge_copies(const Conversion& conversion, std::vector<UnlikeCopy>& copies) {
  const Source& source = *conversion.source.source;
  std::erase_if(copies, [&](const UnlikeCopy& copy) {
    const auto is_it = [&](std::size_t index) { return source.inventory().tensors[index].name == copy.name; };
    const bool is_dropped = std::ranges::any_of(conversion.plan.dropped, is_it);
    const auto architecture = conversion.source.recognition.architecture;
    const std::string_view tied =
        !conversion.options.from.merge.empty()
            ? ". --merge changed one of the two; --drop mtp leaves multi-token prediction out"
        : architecture != nullptr && architecture->tied
            ? ". A head repeats the embedding where config.json says tie_word_embeddings, as it does"
            : "";
    if (is_dropped && !copy.rounded)
      locate_errors(source, [&] {
        name_configuration(conversion.source.hints, [&] {
          fail(ErrorCode::CopyDiffers, {{}, copy.name}, "{}: it is no copy, and nothing else holds it{}",
               to_sentence(copy), tied);
        });
      });
    if (is_dropped && conversion.options.consume_source)
      fail(ErrorCode::SourceNeeded, {conversion.input.string(), copy.name},
           "{}: --consume-source does not remove it: {}, and the output leaves it out", conversion.input.string(),
           to_sentence(copy));
    if (is_dropped)
      tell_note(conversion.run, "{}: it is left out, and '{}' stands for both", to_sentence(copy), copy.original);
    else
      tell_note(conversion.run, "{}: it is moved as a tensor of its own", to_sentence(copy));
    return is_dropped;
  });
}

std::vector<std::byte> copies_bytes(const std::vector<UnlikeCopy>& copies) {
  ByteWriter out;
  out.number(std::ssize(copies));
  for (const UnlikeCopy& copy : copies) {
    out.text(copy.name);
    out.text(copy.original);
    out.number(copy.byte);
  }
  return out.take();
}

std::vector<UnlikeCopy> parse_copies(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "a list of copies");
  std::vector<UnlikeCopy> all(in.count(3 * sizeof(i64)));
  for (UnlikeCopy& copy : all) {
    copy.name = in.text();
    copy.original = in.text();
    copy.byte = in.number();
  }
  in.end();
  return all;
}

}  // namespace

std::string copies_text(const std::vector<UnlikeCopy>& copies) {
  const std::vector<std::byte> bytes = copies_bytes(copies);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void settle_copies(Conversion& conversion, CopyReading reading, Ranks& ranks) {
  if (conversion.consumed != nullptr && conversion.consumed->was_loaded()) {
    conversion.unlike_copies = parse_copies(std::as_bytes(std::span(conversion.consumed->memo())));
    return take_as_own(conversion.unlike_copies, conversion.source.source->inventory(), conversion.source.recognition);
  }
  at_first_rank(ranks, [&] {
    conversion.unlike_copies =
        find_unlike_copies(conversion.run, *conversion.source.source, conversion.source.recognition.copies, reading);
    judge_copies(conversion, conversion.unlike_copies);
  });
  conversion.unlike_copies = parse_copies(ranks.broadcast(copies_bytes(conversion.unlike_copies)));
  take_as_own(conversion.unlike_copies, conversion.source.source->inventory(), conversion.source.recognition);
}

}  // namespace glu_ckpt
