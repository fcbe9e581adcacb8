{{/*
How pods ask for devices. A release that is upgraded with --reuse-values may lack the value.
*/}}
{{- define "weft.devices.mode" -}}
{{ .Values.devices.mode | default "devicePlugin" }}
{{- end }}

{{/*
Not empty where pods have devices by ResourceClaims.
*/}}
{{- define "weft.devices.dra" -}}
{{- if and .Values.devices.enabled (ne (include "weft.devices.mode" .) "devicePlugin") }}true{{ end }}
{{- end }}

{{/*
Where the programs of virtual devices run: at every node of a fabric. They wait at a node whose fabric has had no devices. Where
a fabric has none any more, both go on, also after their pods are replaced.
*/}}
{{- define "weft.devices.scheduling" -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: weft.dev/fabric, operator: Exists}]
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.agent.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.agent.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
securityContext:
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
Root, because the kubelet's directories belong to root, and no capability.
*/}}
{{- define "weft.devices.securityContext" -}}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
