// The sources of prepare.h, one after the other, in blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "data/document_reader.h"
#include "data/prepare/block_encoder.h"
#include "data/prepare/prepare_plan.h"

namespace quern {

class SourceReader {
 public:
  // Goes on at `position` in source number `source`. Plan and options outlive it.
  SourceReader(const PreparePlan& plan, const PrepareOptions& options, size_t source,
               ReadPosition position);

  // The next block; the last one of a source, which is empty, has its digest. False: there are no
  // more sources. Throws also when a source was changed while it was read.
  bool next(SourceBlock& out);

 private:
  void open(const PrepareSource& source);

  const PreparePlan& plan_;
  const PrepareOptions& options_;
  PieceCutter cutter_;
  size_t source_;
  ReadPosition position_;
  int64_t bytes_read_ = 0;  // of all sources, as they lie on the disk
  std::unique_ptr<DigestStream> digest_;
  std::unique_ptr<DocumentReader> reader_;
};

}  // namespace quern
