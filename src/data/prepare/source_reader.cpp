#include "data/prepare/source_reader.h"

#include "base/error.h"

namespace quern {

SourceReader::SourceReader(const PreparePlan& plan, const PrepareOptions& options, size_t source,
                           ReadPosition position)
    : plan_(plan),
      options_(options),
      cutter_(*plan.tokenizer, options.pieces),
      source_(source),
      position_(position) {
  for (size_t i = 0; i < source; ++i) bytes_read_ += plan.sources[i].bytes;
}

bool SourceReader::next(SourceBlock& out) {
  out = {};
  if (source_ == plan_.sources.size()) return false;
  const PrepareSource& source = plan_.sources[source_];
  if (!reader_) open(source);
  out.source = source_;
  out.json_lines = source.json_lines;
  if (!reader_->next(out.block)) {
    out.digest = digest_->digest();
    QUERN_CHECK(out.digest->bytes == source.bytes, source.path.string(), ": had ", source.bytes,
                " bytes when it was opened, and ", out.digest->bytes, " were read");
    reader_.reset();
    ++source_;
    position_ = {};
  }
  out.bytes_read = bytes_read_;
  return true;
}

void SourceReader::open(const PrepareSource& source) {
  digest_ = std::make_unique<DigestStream>();
  auto stream = open_byte_stream(source.path, [this](std::span<const std::byte> bytes) {
    digest_->add(bytes);
    bytes_read_ += static_cast<int64_t>(bytes.size());
  });
  DocumentReaderOptions options;
  options.path = source.path;
  options.split_on = options_.split_on;
  if (plan_.cut && plan_.cut->source == source_) options.cut_at = plan_.cut->byte;
  options.block = options_.block;
  options.longest_line = options_.longest_line;
  reader_ = source.json_lines ? read_json_lines(std::move(stream), position_, options)
                              : read_text_documents(std::move(stream), cutter_, position_, options);
}

}  // namespace quern
