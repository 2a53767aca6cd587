#include "autograd/host_stash.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

namespace {

bool has_streams() {
  const Context& context = Context::current();
  return context.device().is_cuda() && !context.is_dry();
}

// Both contiguous, of as many bytes.
void copy_bytes(const Tensor& to, const Tensor& from, int64_t bytes, kernels::cuda::Stream stream) {
  if (Context::current().is_dry()) return;
  if (to.device().is_cuda()) return cuda::copy(to.raw_data(), from.raw_data(), bytes, stream);
  std::copy_n(static_cast<const char*>(from.raw_data()), bytes, static_cast<char*>(to.raw_data()));
}

}  // namespace

HostStash::~HostStash() {
  side_.finish();
}

HostStash::Group::~Group() {
  std::vector<Group*>& groups = stash_->groups_;
  groups[index_] = nullptr;
  while (!groups.empty() && groups.back() == nullptr) groups.pop_back();
}

Tensor HostStash::place_for(size_t index, size_t part, int64_t bytes) {
  std::vector<Tensor>& places = places_[{index, part}];
  const auto found =
      std::ranges::find_if(places, [&](const Tensor& place) { return place.bytes() == bytes; });
  if (found != places.end()) return *found;
  places.push_back(Tensor::empty_on_host({bytes}, DType::u8,
                                         {"activations on the host", MemoryCategory::activations}));
  return places.back();
}

// Later work on the side stream comes after the work enqueued so far.
void HostStash::fork() {
  forked_.order(Context::current().cuda_stream(), side_);
}

std::shared_ptr<HostStash::Group> HostStash::put(const std::vector<Tensor>& tensors) {
  const bool streams = has_streams();
  if (streams && !side_) {
    side_ = cuda::OwnedStream::create();
    forked_ = cuda::Event(cuda::EventKind::order);
  }
  if (!groups_.empty()) leave(*groups_.back());
  auto group = std::make_shared<Group>(shared_from_this());
  group->index_ = groups_.size();
  groups_.push_back(group.get());
  if (streams) fork();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    QUERN_CHECK(tensor.is_contiguous(), "host stash: tensor ", i, " of group ", group->index_,
                " is not contiguous");
    const Tensor host = place_for(group->index_, i, tensor.bytes());
    copy_bytes(host, tensor, tensor.bytes(), side_);
    if (streams) tensor.record_use(side_);
    group->parts_.push_back({tensor.shape(), tensor.dtype(), host, tensor});
  }
  return group;
}

void HostStash::leave(Group& group) {
  for (Group::Part& part : group.parts_) part.on_device = {};
  group.is_on_device_ = false;
}

// The device's memory is that of the current stream's work: what used it before comes first.
void HostStash::bring(Group& group) {
  if (group.is_on_device_ || group.is_taken_) return;
  group.is_on_device_ = true;
  const bool streams = has_streams();
  for (Group::Part& part : group.parts_) {
    part.on_device = Tensor::empty(part.shape, part.dtype,
                                   {"activations from the host", MemoryCategory::activations});
  }
  if (streams) fork();
  for (const Group::Part& part : group.parts_) {
    copy_bytes(part.on_device, part.host, part.host.bytes(), side_);
    if (streams) part.on_device.record_use(side_);  // it may be dropped before it is taken
  }
  if (!streams) return;
  group.arrival_ = cuda::Event(cuda::EventKind::order);
  group.arrival_.record(side_);
}

std::vector<Tensor> HostStash::take(Group& group) {
  QUERN_CHECK(!group.is_taken_, "host stash: group ", group.index_,
              " is taken for the second time");
  bring(group);
  group.is_taken_ = true;
  if (group.index_ > 0 && groups_[group.index_ - 1] != nullptr) bring(*groups_[group.index_ - 1]);
  if (group.arrival_) group.arrival_.wait(Context::current().cuda_stream());
  std::vector<Tensor> tensors;
  for (Group::Part& part : group.parts_) tensors.push_back(std::exchange(part.on_device, {}));
  return tensors;
}

int64_t HostStash::bytes() const {
  int64_t sum = 0;
  for (const auto& [key, places] : places_) {
    for (const Tensor& place : places) sum += place.bytes();
  }
  return sum;
}

std::function<std::vector<Tensor>()> keep(std::vector<Tensor> tensors,
                                          const std::shared_ptr<HostStash>& stash) {
  if (stash == nullptr || !Context::current().grad_enabled) {
    return [tensors = std::move(tensors)] { return tensors; };
  }
  return [stash, group = stash->put(tensors)] { return stash->take(*group); };
}

}  // namespace quern
