#include "model/layer_recordings.hpp"

namespace trireme::model {

void LayerRecordings::run(device::Backend& backend, const Key& key,
                          const std::function<void()>& work) {
  const auto [known, is_first] = recordings_.try_emplace(key);
  std::unique_ptr<device::Recording>& recording = known->second;
  if (!is_first && !recording) recording = backend.record(work);
  if (recording)
    recording->replay();
  else
    work();
}

}  // namespace trireme::model
