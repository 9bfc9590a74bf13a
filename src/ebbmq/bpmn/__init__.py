"""Storage rules in a business process: service tasks for SpiffWorkflow, with the extra `bpmn`."""
