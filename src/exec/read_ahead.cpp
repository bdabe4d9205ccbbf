#include "exec/read_ahead.hpp"

#include <algorithm>

#include "exec/move_parts.hpp"
#include "glu_ckpt/execute.hpp"
#include "io/file.hpp"
#include "io/file_backed.hpp"
#include "io/page_bytes.hpp"
#include "plan/run_phase.hpp"

namespace glu_ckpt {
namespace {

/// Linux takes no more of one piece of advice than the disk's largest request or its read-ahead, of which 512 KiB are
/// nowhere too much.
constexpr i64 kAdviceBytes = i64{512} << 10;

}  // namespace

void read_ahead(const Source& source, std::span<const Move> moves, i64 begin, i64 end, i64 phase) {
  // The advice costs as much as the read for a few pages, such as those between clones.
  const FileBacked* const files = source.file_backed();
  if (files == nullptr || end - begin < kAdviceBytes) return;
  for (const Move& move : moves)
    clip_move(move, begin, end, [&](const Move& part) {
      const FilePlace place = files->place(part.src);
      const i64 window = source_window(part);
      if (place.file == nullptr || window > kMaxReadWaste * part.bytes()) return;
      const bool past_cache = part.run_bytes >= kPageBytes && run_phase(part, place.offset, phase, kPageBytes) == 0 &&
                              files->reads_past_cache(part.src);
      if (past_cache) return;
      const i64 from = place.offset + part.src_offset;
      for (i64 done = 0; done < window; done += kAdviceBytes)
        place.file->will_need(from + done, std::min(kAdviceBytes, window - done));
    });
}

}  // namespace glu_ckpt
